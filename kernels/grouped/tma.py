"""The `grouped_tma` kernel: groups of rows, loaded through descriptors. It does not serve lists of matrices."""

from __future__ import annotations

import functools
from typing import Any

from tuner.kernel.config import Config
from tuner.kernels.base.operands import INT32_SPAN, placement
from tuner.kernels.batched import operands as batched_operands
from tuner.kernels.batched.tma import descriptor as batch_descriptor
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.spec import gemm_spec, sources_of
from tuner.kernels.gemm.tma import tile as tma_tile
from tuner.kernels.gemm.tma.space import shared_bytes
from tuner.kernels.gemm.tma.spec import descriptor
from tuner.kernels.grouped import jit as grouped_kernel
from tuner.kernels.grouped import tma_jit as grouped_tma_kernel
from tuner.kernels.grouped.operands import GroupedOperands
from tuner.kernels.grouped.pointer import GROUPED_MM, most_tiles, programs
from tuner.kernels.grouped.space import TMA, default_tma, estimate_us, supports_tma, tma
from tuner.kernels.space import tile_resources
from tuner.kernels.space.tile_resources import next_power_of_two
from tuner.launch.launch import TILE, Launch, compiler_options
from tuner.problem import Problem

VERSION = 1


def program(operands: GroupedOperands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    a, b, out = operands.a, operands.b, operands.out
    b_transposed = batched_operands.placement(b).transposed
    shape = (out.shape[0], out.shape[1], a.shape[1], b.shape[0])
    tiles, constants, options = _static(
        operands.problem, shape, config, b_transposed, (out.stride(0), placement(out).vector)
    )
    block_m, block_n, block_k = (constants[name] for name in TILE)
    arguments = (
        descriptor(a, block_m, block_k),
        batch_descriptor(b, block_k, block_n),
        out,
        operands.bias,
        operands.ends,
        *shape,
        int(b.stride(0) != 0),
        *out.stride(),
        max(1, config.integer("GROUP_SIZE_M", 1)),
    )
    grid = (programs(tiles, config, a.device.index),)
    return (Launch(grouped_tma_kernel.grouped_kernel, grid, arguments, constants, options),)


@functools.lru_cache(maxsize=4096)
def _static(
    problem: Problem,
    shape: tuple[int, int, int, int],
    config: Config,
    b_transposed: bool,
    rows_of_out: tuple[int, int],
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The most tiles, constexprs and compiler options; `rows_of_out` is the row stride of C and its C_VECTOR."""
    m, n, _, groups = shape
    tile = tile_resources.tile(config)
    constants = {
        **launches.pdl_of(config),
        **dict(zip(TILE, tile, strict=True)),
        "B_TRANSPOSED": b_transposed,
        "C_VECTOR": rows_of_out[1],
        "WIDE": (tile[0] - 1) * rows_of_out[0] + tile[1] >= INT32_SPAN,
        "BLOCK_GROUPS": next_power_of_two(groups),
        **launches.unscaled_constants(problem, tile[2]),
    }
    return most_tiles(m, n, groups, tile), constants, compiler_options(config)


SPEC = gemm_spec(
    TMA,
    VERSION,
    program,
    supports=supports_tma,
    space=tma,
    default_config=default_tma,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    sources=sources_of(
        *(grouped_kernel, grouped_tma_kernel, tma_tile, program, _static, programs, most_tiles),
        *(descriptor, batch_descriptor, placement, batched_operands.placement),
    ),
    runtime_parameters=("GROUP_SIZE_M", "PROGRAMS_PER_SM"),
    # Loads through descriptors leave the threads' registers to the sums, so this kernel comes before the other.
    precedence=lambda _problem, device: int(not device.is_interpreter),
    operation=GROUPED_MM,
)
