"""The `experts_tma` kernel: `experts_pointer` with weights and hidden values loaded through descriptors."""

from __future__ import annotations

from typing import Any

from tuner.kernel.config import Config
from tuner.kernels.base import blocks, epilogue
from tuner.kernels.base.operands import VECTOR_BYTES, placement
from tuner.kernels.base.program import spec_of
from tuner.kernels.batched.operands import placement as batch_placement
from tuner.kernels.batched.tma import descriptor as batch_descriptor
from tuner.kernels.experts import jit as experts_kernel
from tuner.kernels.experts import launches
from tuner.kernels.experts import tma_jit as experts_tma_kernel
from tuner.kernels.experts.launches import FUSED_EXPERTS, Between
from tuner.kernels.experts.operands import ExpertsOperands
from tuner.kernels.experts.space import TMA, default_tma, estimate_us, supports_tma, tma, tma_shared_bytes
from tuner.kernels.gemm.spec import simplicity
from tuner.kernels.gemm.tma import tile as tma_tile
from tuner.kernels.gemm.tma.spec import descriptor
from tuner.kernels.grouped import jit as grouped_kernel
from tuner.launch.launch import TILE, Launch, compiler_options

VERSION = 1
_ROUTED = 4096
"""Slots that a program of the first launch reads at a time: tiles of 64 rows are worth it where there are many."""


def program(operands: ExpertsOperands, config: Config) -> tuple[Launch, ...]:
    """The launches of a config."""
    return launches.program(operands, config, (_gate_up, _down), _ROUTED, _vector(operands))


def _gate_up(operands: ExpertsOperands, between: Between, shared: dict[str, Any], config: Config) -> Launch:
    a, (m, k), n = operands.a, operands.a.shape, operands.down.shape[2]
    block_n, block_k = (shared[name] for name in TILE[1:])
    weights = batch_descriptor(operands.b, block_n // 2, block_k)
    sizes = (m, n, k, len(operands.b), a.stride(0), launches.group_of(config))
    own = {"VECTOR": _vector(operands), "EVEN_K": k % block_k == 0, "ACTIVATION": operands.problem.activation}
    constants = {**shared, **own}
    grid = (launches.tiles_of(operands, config, n, block_n // 2),)
    arguments = (a, weights, between.hidden, between.order, between.ends, *sizes)
    return Launch(experts_tma_kernel.gate_up_kernel, grid, arguments, constants, compiler_options(config))


def _down(operands: ExpertsOperands, between: Between, shared: dict[str, Any], config: Config) -> Launch:
    (m, k), n = operands.a.shape, operands.down.shape[2]
    block_m, block_n, block_k = (shared[name] for name in TILE)
    hidden = descriptor(between.hidden, block_m, block_k)
    weights = batch_descriptor(operands.down, block_n, block_k)
    sizes = (m, k, n, len(operands.down), launches.group_of(config))
    grid = (launches.tiles_of(operands, config, k, block_n),)
    arguments = (hidden, weights, between.slots, operands.shares, between.order, between.ends, *sizes)
    constants = {**shared, "VECTOR": _vector(operands)}
    return Launch(experts_tma_kernel.down_kernel, grid, arguments, constants, compiler_options(config))


def _vector(operands: ExpertsOperands) -> int:
    """Elements of 16 bytes: they divide N, K and all strides of operands that are aligned."""
    size: int = operands.a.element_size()
    return VECTOR_BYTES // size


SPEC = spec_of(
    FUSED_EXPERTS,
    TMA,
    VERSION,
    program,
    supports=supports_tma,
    space=tma,
    default_config=default_tma,
    shared_bytes=tma_shared_bytes,
    estimate_us=estimate_us,
    sources=(
        *(experts_kernel, experts_tma_kernel, grouped_kernel, tma_tile, launches, program, _gate_up, _down, _vector),
        *(descriptor, batch_descriptor, placement, batch_placement, blocks, epilogue),
    ),
    simplicity=simplicity,
    runtime_parameters=("GROUP_SIZE_M",),
    # Loads through descriptors leave the threads' registers to the sums, so this kernel comes before the other.
    precedence=lambda _problem, device: int(not device.is_interpreter),
)
