"""The `grouped_tma` kernel: groups of rows, loaded through descriptors. It does not serve lists of matrices."""

from __future__ import annotations

from typing import Any

from tuner.kernel.config import Config
from tuner.kernels.base.operands import INT32_SPAN, placement
from tuner.kernels.batched.operands import placement as batch_placement
from tuner.kernels.batched.tma import descriptor as batch_descriptor
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.spec import gemm_spec, sources_of
from tuner.kernels.gemm.tma import tile as tma_tile
from tuner.kernels.gemm.tma.space import shared_bytes
from tuner.kernels.gemm.tma.spec import descriptor
from tuner.kernels.grouped import jit as grouped_kernel
from tuner.kernels.grouped import tma_jit as grouped_tma_kernel
from tuner.kernels.grouped.operands import GroupedOperands
from tuner.kernels.grouped.pointer import GROUPED_MM, most_tiles, placed, programs
from tuner.kernels.grouped.space import TMA, default_tma, estimate_us, supports_tma, tma
from tuner.launch.launch import TILE, Launch

VERSION = 1


def program(operands: GroupedOperands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    a, b, out = operands.a, operands.b, operands.out
    view = launches.view_of(operands, placed)
    _, _, constants, options = _parts(view, config)
    block_m, block_n, block_k = (constants[name] for name in TILE)
    arguments = (
        descriptor(a, block_m, block_k),
        batch_descriptor(b, block_k, block_n),
        out,
        operands.bias,
        operands.ends,
        *view.shape,
        view.products,
        int(b.stride(0) != 0),
        *out.stride(),
        max(1, config.integer("GROUP_SIZE_M", 1)),
    )
    grid = (programs(most_tiles(view, config), config, a.device.index),)
    return (Launch(grouped_tma_kernel.grouped_kernel, grid, arguments, constants, options),)


def _own(view: launches.View, config: Config) -> dict[str, Any]:
    block_m, block_n = config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N")
    return {"WIDE": (block_m - 1) * view.strides[4] + block_n >= INT32_SPAN}


_parts = launches.parts_of(grouped_tma_kernel.grouped_kernel, _own)


SPEC = gemm_spec(
    GROUPED_MM,
    TMA,
    VERSION,
    program,  # type: ignore[arg-type]  # `supports_tma` refuses the problems of lists
    supports=supports_tma,
    space=tma,
    default_config=default_tma,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    sources=sources_of(
        *(grouped_kernel, grouped_tma_kernel, tma_tile, program, placed, _own, programs, most_tiles),
        *(descriptor, batch_descriptor, placement, batch_placement),
    ),
    runtime_parameters=("GROUP_SIZE_M", "PROGRAMS_PER_SM"),
    # Loads through descriptors leave the threads' registers to the sums, so this kernel comes before the other.
    precedence=lambda _problem, device: int(not device.is_interpreter),
)
