"""The op `gated_linear`, and what its kernels' launches share: sizes, constexprs, and vectors of their operands."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from tuner.kernel.config import Config
from tuner.kernels.base.operands import INT32_SPAN, VECTOR_BYTES
from tuner.kernels.base.program import Operation
from tuner.kernels.gated import operands as op
from tuner.kernels.gated.operands import GatedOperands
from tuner.kernels.gemm.launches import grid_of, named, of_config
from tuner.kernels.space.tile_resources import next_power_of_two
from tuner.launch.launch import TILE, compiler_options
from tuner.problem import Problem

GATED_LINEAR = Operation(
    "gated_linear",
    op.make_operands,
    op.vendor,
    op.reference,
    op.launch_interpreted,
    op.tolerance,
    flops=lambda problem: 4 * problem.m * problem.n * problem.k,
    bytes_moved=op.bytes_moved,
)


class View(NamedTuple):
    """What a launch needs to know of its operands before it takes their addresses.

    Attributes:
        problem: what is computed.
        shape: M, N and K.
        vector_n: elements that divide N and the output's row stride, up to 16 bytes.
        vector_k: elements that divide K and all other row strides, up to 16 bytes.
        strides: the row strides of x, of each weight and of the output.
    """

    problem: Problem
    shape: tuple[int, int, int]
    vector_n: int
    vector_k: int
    strides: tuple[int, int, int]


def view_of(operands: GatedOperands) -> View:
    """View the operands; without aligned addresses nothing is known to divide anything."""
    a, gate, up, out = operands.a, operands.b, operands.up, operands.out
    (m, k), n, widest = a.shape, len(gate), VECTOR_BYTES // a.element_size()
    vector_n = 1 if out.data_ptr() % VECTOR_BYTES else math.gcd(widest, n, out.stride(0))
    is_apart = any(each.data_ptr() % VECTOR_BYTES for each in (a, gate, up))
    vector_k = 1 if is_apart else math.gcd(widest, k, a.stride(0), gate.stride(0))
    return View(operands.problem, (m, n, k), vector_n, vector_k, (a.stride(0), gate.stride(0), out.stride(0)))


def arguments_of(operands: GatedOperands, view: View) -> tuple[Any, ...]:
    """The tensors, sizes and strides of a kernel that takes pointers."""
    return operands.a, operands.b, operands.up, operands.out, *view.shape, *view.strides


Parts = tuple[tuple[int, ...], int, dict[str, Any], dict[str, Any]]
"""A launch except its tensors: its grid, GROUP_SIZE_M, its constexprs and the compiler's options."""


def parts_of(function: Any, own: Callable[[View, Config], dict[str, Any]]) -> Callable[[View, Config], Parts]:
    """Make the cached function from a view and a config to the parts of a launch, which nobody may change.

    Args:
        function: the jit function, which is passed those constexprs that it names.
        own: the constexprs that only this kernel has.
    """

    @functools.lru_cache(maxsize=4096)
    def parts(view: View, config: Config) -> Parts:
        m, n, k = view.shape
        # A tile without BLOCK_SIZE_M has all rows of x.
        whole = config.replace(BLOCK_SIZE_M=config.integer("BLOCK_SIZE_M", next_power_of_two(m)))
        block_m, block_n, length = (whole.integer(name) for name in TILE)
        known = {
            "VECTOR_N": view.vector_n,
            "VECTOR_K": view.vector_k,
            "EVEN_K": k > 0 and k % length == 0,
            "WIDE": max(block_m, block_n) * max(view.strides) >= INT32_SPAN,
        }
        constants = {**of_config(view.problem, whole), **known, **own(view, config)}
        grid, group = grid_of(config, (block_m, block_n // 2), m, n)
        return grid, group, named(function, constants), compiler_options(config)

    return parts
