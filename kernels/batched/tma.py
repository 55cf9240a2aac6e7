"""The `bmm_tma` kernel: each program computes one tile of one product, through descriptors of the whole batch."""

from __future__ import annotations

import functools

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import VECTOR_BYTES, Operands
from tuner.kernels.batched import jit as bmm_kernel
from tuner.kernels.batched.operands import batch_of, placement
from tuner.kernels.batched.pointer import BMM
from tuner.kernels.batched.space import TMA, supports_tma, tma
from tuner.kernels.cost import model as cost
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.spec import gemm_spec, sources_of
from tuner.kernels.gemm.tma import tile as tma_tile
from tuner.kernels.gemm.tma.space import shared_bytes
from tuner.launch.launch import TILE, Launch
from tuner.problem import Problem

VERSION = 2


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    a, b, out = operands.a, operands.b, operands.out
    view = launches.view_of(operands, placement)
    (tiles,), group, constants, options = _parts(view, config)
    block_m, block_n, block_k = (constants[name] for name in TILE)
    arguments = (
        descriptor(a, block_m, block_k),
        descriptor(b, block_k, block_n),
        descriptor(out, block_m, block_n),
        operands.bias,
        *view.shape,
        int(a.stride(0) != 0),
        int(b.stride(0) != 0),
        group,
    )
    return (Launch(bmm_kernel.tma_kernel, (view.products * tiles,), arguments, constants, options),)


def descriptor(batch: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A descriptor of a batch [B, height, width] as it is stored, for blocks of [rows, columns] of one matrix.

    A batch that repeats one matrix (its batch stride is 0) becomes a batch of one.
    """
    block = [1, rows, columns]
    if placement(batch).transposed:
        batch, block = batch.mT, [1, columns, rows]
    (count, height, width), (between, lead, _) = batch.shape, batch.stride()
    # The stride of a dimension of one element is never used, but the hardware checks that 16 bytes divide it.
    if height == 1:
        unit = VECTOR_BYTES // batch.element_size()
        lead = -(-width // unit) * unit
    if count == 1 or between == 0:
        count, between = 1, lead * height
    return TensorDescriptor(batch, [count, height, width], [between, lead, 1], block)


_parts = launches.parts_of(bmm_kernel.tma_kernel)


def _estimate_us(config: Config, problem: Problem, device: Device) -> float:
    return cost.tiled(config, problem, device, by_tma=True, products=batch_of(problem))


def default_config(problem: Problem, device: Device) -> Config:
    """The candidate with the least estimated time; ties go to groups of 8 rows."""
    estimated = functools.partial(_estimate_us, problem=problem, device=device)
    smallest = Config(TMA, **dict.fromkeys(TILE, 64), GROUP_SIZE_M=1, num_stages=1, num_warps=4)
    found = tma(problem, device).best(estimated, ties=lambda config: abs(config.integer("GROUP_SIZE_M", 1) - 8))
    return found or smallest


SPEC = gemm_spec(
    BMM,
    TMA,
    VERSION,
    program,
    supports=supports_tma,
    space=tma,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=_estimate_us,
    sources=sources_of(bmm_kernel, tma_tile, program, descriptor, placement),
    # Loads through descriptors leave the threads' registers to the sums, so this kernel comes before the other.
    precedence=lambda _problem, device: int(not device.is_interpreter),
)
