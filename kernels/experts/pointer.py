"""The `experts_pointer` kernel: a mixture of experts in four launches, whose two products share a tile."""

from __future__ import annotations

import functools
import math
from typing import Any

from tuner.kernel.config import Config
from tuner.kernels.base import blocks, epilogue
from tuner.kernels.base.operands import VECTOR_BYTES
from tuner.kernels.base.program import spec_of
from tuner.kernels.experts import jit as experts_kernel
from tuner.kernels.experts import launches
from tuner.kernels.experts.launches import FUSED_EXPERTS, Between
from tuner.kernels.experts.operands import ExpertsOperands
from tuner.kernels.experts.space import (
    POINTER,
    default_pointer,
    estimate_us,
    pointer,
    pointer_shared_bytes,
    supports_pointer,
)
from tuner.kernels.gemm.spec import simplicity
from tuner.kernels.grouped import jit as grouped_kernel
from tuner.launch.launch import Launch, compiler_options

VERSION = 2
_ROUTED = 1024
"""Slots that a program of the first launch reads at a time."""


def program(operands: ExpertsOperands, config: Config) -> tuple[Launch, ...]:
    """The launches of a config."""
    vectors = _vectors(operands)
    products = functools.partial(_gate_up, vectors=vectors), functools.partial(_down, vectors=vectors)
    return launches.program(operands, config, products, _ROUTED, vectors[1])


def _gate_up(
    operands: ExpertsOperands, between: Between, shared: dict[str, Any], config: Config, *, vectors: tuple[int, int]
) -> Launch:
    a, b, activation = operands.a, operands.b, operands.problem.activation
    (m, k), n = a.shape, operands.down.shape[2]
    half, (vector_n, vector_k) = shared["BLOCK_SIZE_N"] // 2, vectors
    sizes = (m, n, k, len(b), a.stride(0), b.stride(0), b.stride(1), launches.group_of(config))
    constants = {**shared, **_lengths(operands, vector_n, vector_k, k, shared), "ACTIVATION": activation}
    grid = (launches.tiles_of(operands, config, n, half),)
    arguments = (a, b, between.hidden, between.order, between.ends, *sizes)
    return Launch(experts_kernel.gate_up_kernel, grid, arguments, constants, compiler_options(config))


def _down(
    operands: ExpertsOperands, between: Between, shared: dict[str, Any], config: Config, *, vectors: tuple[int, int]
) -> Launch:
    down, (m, k), n = operands.down, operands.a.shape, operands.down.shape[2]
    vector_n, vector_k = vectors
    sizes = (m, k, n, len(down), down.stride(0), down.stride(1), launches.group_of(config))
    constants = {**shared, **_lengths(operands, vector_k, vector_n, n, shared)}
    grid = (launches.tiles_of(operands, config, k, shared["BLOCK_SIZE_N"]),)
    arguments = (between.hidden, down, between.slots, operands.shares, between.order, between.ends, *sizes)
    return Launch(experts_kernel.down_kernel, grid, arguments, constants, compiler_options(config))


def _lengths(
    operands: ExpertsOperands, vector_n: int, vector_k: int, length: int, shared: dict[str, Any]
) -> dict[str, Any]:
    """The constexprs of one product whose sums are `length` long."""
    precision = operands.problem.precision
    return {
        "VECTOR_N": vector_n,
        "VECTOR_K": vector_k,
        "EVEN_K": length % shared["BLOCK_SIZE_K"] == 0,
        "PRECISION": "ieee" if precision == "default" else precision,
    }


def _vectors(operands: ExpertsOperands) -> tuple[int, int]:
    """Powers of two, up to 16 bytes of elements, that divide N, and K with all strides; 1 without aligned addresses."""
    a, b, down, out = operands.a, operands.b, operands.down, operands.out
    widest = VECTOR_BYTES // a.element_size()
    if any(each.data_ptr() % VECTOR_BYTES for each in (a, b, down, out)):
        return 1, 1
    along_n = (down.shape[2], down.stride(0), down.stride(1))
    along_k = (a.shape[1], a.stride(0), b.stride(0), b.stride(1), out.stride(0))
    return math.gcd(widest, *along_n), math.gcd(widest, *along_k)


SPEC = spec_of(
    FUSED_EXPERTS,
    POINTER,
    VERSION,
    program,
    supports=supports_pointer,
    space=pointer,
    default_config=default_pointer,
    shared_bytes=pointer_shared_bytes,
    estimate_us=estimate_us,
    sources=(experts_kernel, grouped_kernel, launches, program, _gate_up, _down, _lengths, _vectors, blocks, epilogue),
    simplicity=simplicity,
    runtime_parameters=("GROUP_SIZE_M",),
)
