"""The `tma` kernel, which computes one tile per program through descriptors, and the launch that others share."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernels.base.operands import VECTOR_BYTES, Operands, is_aligned, placement
from tuner.kernels.cost import calibration
from tuner.kernels.gemm import calibrated, launches, sums
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.gemm.tma import jit as tma_kernel
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.gemm.tma import tile as tma_tile
from tuner.kernels.gemm.tma.space import NAME, shared_bytes, space, supports_tiles
from tuner.launch.launch import TILE, Launch
from tuner.problem import Problem

VERSION = 2


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    return (tma_launch(operands, config),)


def tma_launch(operands: Operands, config: Config, *, exchanged: bool = False, apart: bool = False) -> Launch:
    """Make a launch as `pointer_launch` does, of `tma.jit.matmul_kernel`, for an A and a B that TMA accepts.

    apart: whether another launch adds the parts of sums that are split.
    """
    a, b, out = operands.a, operands.b, operands.out
    view = launches.view_of(operands, exchanged=exchanged)
    grid, group, constants, options = _parts(view, config)
    block_m, block_n, block_k = (constants[name] for name in TILE)
    ahead = (a if exchanged else b.t()) if constants["PREFETCH"] else None
    partials, counters = launches.split_memory(grid, constants, a)
    arguments = (
        descriptor(a, block_m, block_k),
        descriptor(b, block_k, block_n),
        destination(out, block_m, block_n),
        ahead,
        operands.bias,
        operands.scale_a,
        operands.scale_b,
        partials,
        None if apart else counters,
        *view.shape,
        None if ahead is None else ahead.stride(0),
        *destination_strides(out),
        group,
    )
    return Launch(tma_kernel.matmul_kernel, grid, arguments, constants, options)


def descriptor(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor of a matrix in its storage order, for blocks [rows, columns] of the matrix itself."""
    block = [rows, columns]
    if placement(matrix).transposed:
        matrix, block = matrix.t(), [columns, rows]
    lead = matrix.stride(0)
    if matrix.shape[0] == 1:
        # The stride of a dimension of one element is never used, but the hardware checks that 16 bytes divide it.
        unit = VECTOR_BYTES // matrix.element_size()
        lead = -(-matrix.shape[1] // unit) * unit
    return TensorDescriptor(matrix, list(matrix.shape), [lead, 1], block)


def destination(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor | torch.Tensor:
    """The argument through which blocks are stored: a descriptor, or the matrix itself if TMA cannot write it."""
    return descriptor(matrix, rows, columns) if written_by_tma(matrix) else matrix


def destination_strides(matrix: torch.Tensor) -> tuple[int | None, int | None]:
    """The strides with which to store without a descriptor; None if there is a descriptor."""
    if written_by_tma(matrix):
        return None, None
    row_stride, column_stride = matrix.stride()
    return row_stride, column_stride


def written_by_tma(matrix: torch.Tensor) -> bool:
    """Whether TMA stores an output."""
    # A load ends with the row's last element, but a store ends with a 16-byte unit and would write past an unaligned
    # row (observed on an H200, benchmarks/checks/numerics.py).
    return is_aligned(matrix)


def default_config(problem: Problem, device: Device) -> Config:
    """The candidate with the least calibrated estimate; where none is, the tile that fills the device best."""
    if not calibration.applies(problem, device):
        return tma_space.default_config(problem, device)

    def variants(point: Config, splits: int) -> Iterator[dict[str, Value]]:  # noqa: ARG001  no sum is split
        return ({"num_stages": config["num_stages"]} for config in tma_space.expand(point, problem, device))

    tried = space(problem, device).narrowed(GROUP_SIZE_M=(1, 8))
    return calibrated.best(tried, lambda _: (1,), variants, lambda one: -one.integer("num_stages"))


_parts = launches.parts_of(tma_kernel.matmul_kernel)

SOURCES = sources_of(tma_kernel, tma_tile, tma_launch, descriptor, destination, placement)

SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports_tiles,
    space=space,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=calibrated.estimate_us,
    estimates_us=calibrated.estimates_us,
    sources=SOURCES,
    order=sums.of_tile,
)
