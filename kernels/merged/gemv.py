"""The `merged_gemv` kernel for one or two rows, whose time is that of reading all weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base import blocks
from tuner.kernels.base.interpreted import launch_interpreted
from tuner.kernels.base.numerics import tolerance
from tuner.kernels.base.operands import INT32_SPAN, VECTOR_BYTES
from tuner.kernels.base.program import Operation, spec_of
from tuner.kernels.cost.terms import LAUNCH_US
from tuner.kernels.cost.tile import memory_bytes_per_us
from tuner.kernels.gemm import splitting
from tuner.kernels.gemm.launches import named, of_config
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.gemm.small_m import gemv as product_gemv
from tuner.kernels.gemm.spec import simplicity
from tuner.kernels.merged import gemv_jit
from tuner.kernels.merged import operands as op
from tuner.kernels.merged.operands import MergedOperands, product
from tuner.kernels.space import linear_layers, tile_rules
from tuner.kernels.space.rule import rule
from tuner.kernels.space.tile_resources import next_power_of_two
from tuner.launch.launch import Launch, compiler_options
from tuner.problem import Problem
from tuner.problem.merged_parts import MOST_ROWS, PARTS

NAME = "merged_gemv"
VERSION = 1
_FOLDED = 8
"""The most neighbouring products of a row that a thread adds into one register, as in `gemv`."""
_MOST_UNALIGNED = 32
"""Sums of a thread where each load is of one element: as many registers, beside three weights' addresses."""
_HELD, _COLUMNS, _LENGTH, _THREADS = 16, 2, 1024, 448
"""For one row of x: the products of a thread, the columns and the step along K that are best, and how many threads a
multiprocessor needs. For two rows, twice the products of each row, twice the columns and half the step."""


MERGED_LINEAR = Operation("merged_linear", op.make_operands, op.vendor, op.reference, launch_interpreted, tolerance)


class _View(NamedTuple):
    """What a launch needs to know of its operands before it takes their addresses.

    Attributes:
        problem: what is computed.
        widths: the rows of each weight.
        vector_k: elements that divide K and the row strides of x and of the weights, up to 16 bytes.
        strides: these strides.
    """

    problem: Problem
    widths: tuple[int, ...]
    vector_k: int
    strides: tuple[int, int]


def program(operands: MergedOperands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    view = _view_of(operands)
    m, _, k = view.problem.shape
    grid, constants, options = _parts(view, config)
    given = operands.b, operands.second, operands.third, operands.bias, operands.second_bias, operands.third_bias
    tensors = operands.a, *given, operands.out
    widths = (*view.widths, 0)[:3]
    return (Launch(gemv_jit.merged_gemv_kernel, grid, (*tensors, m, k, *widths, *view.strides), constants, options),)


def _view_of(operands: MergedOperands) -> _View:
    """View the operands; without aligned addresses nothing is known to divide anything."""
    a, weights = operands.a, operands.weights
    strides = a.stride(0), weights[0].stride(0)
    is_apart = any(each.data_ptr() % VECTOR_BYTES for each in (a, *weights))
    vector_k = 1 if is_apart else math.gcd(VECTOR_BYTES // a.element_size(), a.shape[1], *strides)
    return _View(operands.problem, tuple(map(len, weights)), vector_k, strides)


@functools.lru_cache(maxsize=4096)
def _parts(view: _View, config: Config) -> tuple[tuple[int], dict[str, Any], dict[str, Any]]:
    """A launch's grid, its constexprs and the compiler's options, which nobody may change."""
    m, _, k = view.problem.shape
    block_n, length = config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K")
    constants = {
        **of_config(view.problem, config),
        "BLOCK_SIZE_M": next_power_of_two(m),
        "VECTOR_K": view.vector_k,
        "FOLD": min(view.vector_k, length, _FOLDED),
        "EVEN_K": k % length == 0,
        "WIDE": max(next_power_of_two(m), block_n) * max(view.strides) >= INT32_SPAN,
    }
    grid = (sum(-(-width // block_n) for width in view.widths),)
    return grid, named(gemv_jit.merged_gemv_kernel, constants), compiler_options(config)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := linear_layers.obstacle(problem, (PARTS,)):
        return reason
    if problem.activation != "none":
        return f"no epilogue {problem.epilogue}: expected none or bias"
    if problem.m > MOST_ROWS:
        return f"M is {problem.m}: it takes {MOST_ROWS} rows at most"
    return pointer_space.supports_operands(product(problem), device)


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space: that of `gemv` without splits, for the columns of all weights."""
    return SearchSpace(NAME, problem, device, _axes(device), RULES)


def _axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    return {name: values for name, values in product_gemv.axes(device).items() if name != "SPLIT_K"}


def _as_product(config: Config, problem: Problem) -> tuple[Config, Problem]:
    return config, product(problem)


@rule(
    "unaligned sums",
    "compiled for sm_90: 64 of them beside the addresses of three weights spill up to 376 bytes",
    reads=("BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps"),
)
def _unaligned(config: Config, problem: Problem, device: Device) -> str | None:
    sums = product_gemv.held(config, product(problem), device)
    if problem.aligned or device.is_interpreter or sums <= _MOST_UNALIGNED:
        return None
    return f"a thread would hold {sums:g} sums, none of which it can fold: {_MOST_UNALIGNED} fit without alignment"


RULES = (
    tile_rules.parameters(lambda _, device: _axes(device), optional=("num_stages",)),
    _unaligned,
    *(splitting.on_view(_as_product, each) for each in product_gemv.OF_TILE),
)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """Microseconds to read all weights, and what it takes longer for each factor of two away from the best config.

    Chosen on all configs of nine models' attention on an H200 (benchmarks/suites/merged.csv).
    """
    least = LAUNCH_US + MERGED_LINEAR.bytes_moved(problem) / memory_bytes_per_us(device)
    rows, columns = next_power_of_two(problem.m), config.integer("BLOCK_SIZE_N")
    held = product_gemv.held(config, product(problem), device) / rows
    threads = problem.n / columns * config.integer("num_warps") * device.warp_size / device.sm_count
    length = min(_LENGTH // rows, next_power_of_two(problem.k))
    away = (
        0.05 * abs(math.log2(held / (_HELD * rows))),
        0.01 * abs(math.log2(columns / (_COLUMNS * rows))),
        0.05 * max(0.0, math.log2(_THREADS / threads)),
        0.01 * max(0.0, math.log2(length / config.integer("BLOCK_SIZE_K"))),
    )
    return least * (1 + sum(away))


def default_config(problem: Problem, device: Device) -> Config:
    """The config with the least estimated time."""
    tried = space(problem, device)
    return tried.best(lambda config: estimate_us(config, problem, device)) or tried.smallest()


SPEC = spec_of(
    MERGED_LINEAR,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    estimate_us=estimate_us,
    sources=(gemv_jit, program, _view_of, _parts, blocks),
    simplicity=simplicity,
)
