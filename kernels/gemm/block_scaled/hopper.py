"""The `block_scaled_warp_specialized` kernel: fp8 operands with block scales (`scaling` "block") on Hopper.

In Gluon. Scales come through the ring of stages with the operands, by TMA if it can read them where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tuner.hardware.device import Device, multiprocessors
from tuner.kernel.config import Config
from tuner.kernels.base.operands import VECTOR_BYTES, Operands, placement
from tuner.kernels.cost import calibration
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.terms import Terms
from tuner.kernels.cost.tile import Loop, Sides, tile_of_few_rows
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.block_scaled import hopper_jit, hopper_model
from tuner.kernels.gemm.block_scaled.hopper_space import NAME, WGMMA_ROWS, shared_bytes, space, supports
from tuner.kernels.gemm.hopper import loader, output, tile
from tuner.kernels.gemm.hopper.resources import warpgroups
from tuner.kernels.gemm.hopper.warp_specialized import laid_out, registers_of
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.gemm.tma.spec import descriptor, destination_strides
from tuner.launch.launch import Launch, compiler_options
from tuner.problem import Problem

VERSION = 1


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    a, b, out, scale_a, scale_b = operands.a, operands.b, operands.out, operands.scale_a, operands.scale_b
    assert scale_a is not None
    assert scale_b is not None
    view = launches.view_of(operands)
    constants, options = _static(view, config)
    rows, columns = constants["BLOCK_SIZE_M"], constants["BLOCK_SIZE_N"]
    tiles_m, tiles_n = -(-view.shape[0] // rows), -(-view.shape[1] // columns)
    # Both lie along M, and along K, in rows that TMA can read; or else the loading warp's threads copy them.
    of_rows, of_columns = scale_a.t(), scale_b.t()
    scales: tuple[Any, ...] = (scale_a, scale_b)
    scale_strides: tuple[int | None, ...] = (*scale_a.stride(), *scale_b.stride())
    if _readable_by_tma(of_rows) and _readable_by_tma(of_columns):
        scale_strides = (None,) * 4
        scales = (_scales(of_rows, max(rows, WGMMA_ROWS)), _scales(of_columns, hopper_jit.AHEAD.value))
    c_strides = destination_strides(out)
    c = laid_out(out, WGMMA_ROWS, columns // constants["EPILOGUE_PARTS"], 1) if c_strides[0] is None else out
    arguments = (
        laid_out(a, rows, hopper_jit.LENGTH.value, 1),
        laid_out(b, hopper_jit.LENGTH.value, columns, 1),
        *scales,
        c,
        operands.bias,
        *view.shape,
        *scale_strides,
        *c_strides,
        min(max(1, config.integer("GROUP_SIZE_M", 1)), tiles_m),
    )
    on_device = a.device.index if a.is_cuda else None
    grid = (min(tiles_m * tiles_n, multiprocessors(on_device)),)
    return (Launch(hopper_jit.block_scaled_kernel, grid, arguments, constants, options),)


def _readable_by_tma(scales: torch.Tensor) -> bool:
    """Whether TMA can load from a matrix of scales with contiguous rows."""
    (rows, columns), (row_stride, column_stride) = scales.shape, scales.stride()
    if scales.data_ptr() % VECTOR_BYTES or (columns > 1 and column_stride != 1):
        return False
    # The stride of a dimension of one element is never used, whatever torch says it is.
    aligned = row_stride * scales.element_size() % VECTOR_BYTES == 0
    return rows == 1 or (row_stride >= columns and bool(aligned))


def _scales(matrix: torch.Tensor, columns: int) -> TensorDescriptor:
    """A descriptor of scales, for blocks of one row."""
    rows, extent = matrix.shape
    unit = VECTOR_BYTES // matrix.element_size()
    lead = matrix.stride(0) if rows > 1 else -(-extent // unit) * unit
    return TensorDescriptor(matrix, [rows, extent], [lead, 1], [1, columns], _plain())


@functools.lru_cache(maxsize=1)
def _plain() -> Any:
    return hopper_jit.plain()


@functools.lru_cache(maxsize=4096)
def _static(view: launches.View, config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Constexprs and compiler options."""
    groups, steps = warpgroups(config), -(-view.shape[2] // hopper_jit.LENGTH.value)
    columns = config.integer("BLOCK_SIZE_N")
    # A thread holds the sums of 64 rows and two sets of products.
    registers = registers_of(groups, columns, 3 * WGMMA_ROWS * columns / 128)
    given = {
        **launches.of_view(view, config),
        "EPILOGUE_PARTS": config.integer("EPILOGUE_PARTS", 1),
        "WARPGROUPS": groups,
        "REST": steps % hopper_jit.DEPTH.value,
        "LOADER_REGISTERS": registers.loader,
        "MULTIPLIER_REGISTERS": registers.multiplier,
    }
    # The launch's num_warps are those of the first multiplying warpgroup. Gluon adds the warps of other partitions.
    options = {**compiler_options(config), "num_warps": 4, "maxnreg": registers.launched}
    del options["num_stages"]
    return launches.named(hopper_jit.block_scaled_kernel, given), options


def terms(config: Config, problem: Problem, device: Device) -> Terms:
    """The cost model's terms; scaling takes no time of its own, because the tensor cores go on meanwhile."""
    return cost.of_tile(tile_of_few_rows(Sides.of(config), _LOOP, problem, device), config)


_LOOP = Loop(by_tma=True, persistent=True, specialized=True)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate, calibrated, or that of `hopper_model` where it knows the problem."""
    return estimates_us((config,), problem, device)[config]


def estimates_us(configs: Iterable[Config], problem: Problem, device: Device) -> dict[Config, float]:
    """The same of many configs."""
    listed = list(configs)
    estimated = [(terms(config, problem, device), config) for config in listed]
    if hopper_model.knows(problem):
        return {config: hopper_model.modelled_us(config, found, problem, device) for found, config in estimated}
    return dict(zip(listed, calibration.of_tiles(estimated, problem, device), strict=True))


def ties(config: Config) -> tuple[int, ...]:
    """Of equal estimates wide groups come first, and two buffers for storing parts of C."""
    return -config.integer("GROUP_SIZE_M"), config.integer("EPILOGUE_PARTS"), -config.integer("BLOCK_SIZE_N")


SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    estimates_us=estimates_us,
    ties=ties,
    sources=sources_of(
        *(hopper_jit, loader, tile, output, program, _readable_by_tma, _scales, _static),
        *(laid_out, registers_of, descriptor, placement),
    ),
)
