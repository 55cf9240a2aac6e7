"""The float64 reference of a GEMM, and how far from it a correct result may be.

docs/numerics.md derives the formula of `tolerance`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tuner.kernels.base.activations import activated, saturated
from tuner.kernels.base.operands import SCALE_GROUP, Operands
from tuner.problem import Problem, dtype

if TYPE_CHECKING:
    import torch

ROUNDOFF = {
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "int32": 0.0,
}
"""Largest relative error of rounding to a dtype: half its spacing at 1."""
OPERAND_ERROR = {"default": 0.0, "ieee": 0.0, "tf32": 2.0**-9, "tf32x3": 2.0**-18}
"""Largest relative error of a product, by the precision with which its operands are read.

tf32 truncates both operands to 10 bits of fraction (2^-10 each); tf32x3 adds the truncated parts back, but not their
product.
"""
_SCALE_ERROR = 3 * 2.0**-24
"""Largest relative error of converting an int32 sum to float32 and multiplying it by two scales."""
_STEEPEST_ACTIVATION = 1.13
_CUT_SUMS = 2.0**-26
"""What tensor cores cut off unsplit float32 sums, for each product, as a share of the result's spread. An H200 came to
1.7 * 2^-28 with 16-bit operands and 10^6 results, at a K of 4,096 to 262,144 (docs/decisions.md, 178)."""


def reference(operands: Operands) -> torch.Tensor:
    """The result in float64 [M, N], clamped to the range of an 8-bit output as the kernels do."""
    problem = operands.problem
    a, b = operands.a.double(), operands.b.double()
    if operands.scale_a is None or operands.scale_b is None:
        result = a @ b
    elif problem.scaling == "block":
        result = (a * _spread(operands.scale_a, a, rows=1)) @ (b * _spread(operands.scale_b, b, rows=SCALE_GROUP))
    else:
        result = (a @ b) * operands.scale_a.double().view(-1, 1) * operands.scale_b.double()
    if operands.bias is not None:
        result += operands.bias.double()
    return saturated(activated(result, problem.activation), problem.out_dtype)


def tolerance(problem: Problem) -> float:
    """Largest error that a correct result may have, in the measure of `tuner.sweep.verify.error`.

    The measure is max |out - reference| / (sqrt(K) + 1) over operands N(0, 1). The tolerance adds up the errors of
    rounding the output and of reading the operands, both at the largest value to be expected, and those of accumulating
    and of scaling. Scales are at most 1, so they make no result larger. int32 results are exact.
    """
    if problem.out_dtype == "int32":
        return 0.0
    peak = _peak(problem.k)
    reading = OPERAND_ERROR[problem.precision] * peak
    scaling = 0.0 if problem.scaling == "none" else _SCALE_ERROR * peak
    return ROUNDOFF[problem.out_dtype] * peak + _STEEPEST_ACTIVATION * (reading + _accumulation(problem) + scaling)


def max_imprecise(problem: Problem, block_size_k: int) -> int | None:
    """How many products Hopper's fp8 tensor cores may accumulate by themselves (None: all of K)."""
    if dtype.is_fp8(problem.a_dtype) and not problem.fast_accum:
        return min(128, block_size_k)
    return None


def _spread(scales: torch.Tensor, like: torch.Tensor, *, rows: int) -> torch.Tensor:
    """Repeat the block scales of `rows` rows (1 or 128) and 128 columns, so that each element has its own."""
    spread = scales.double().repeat_interleave(rows, 0).repeat_interleave(SCALE_GROUP, 1)
    return spread[: like.shape[0], : like.shape[1]]


def _peak(k: int) -> float:
    """A bound on the largest |result| / (sqrt(K) + 1) among 10^12 elements.

    Bernstein's inequality for a sum of K products of two N(0, 1) values: P(|sum| > t) <= 2·exp(-t²/(2(K + t))), which
    is 2e-12 at t = 7.4·sqrt(K) + 55; 7 more for a bias.
    """
    return (7.4 * math.sqrt(k) + 62) / (math.sqrt(k) + 1)


def _accumulation(problem: Problem) -> float:
    if dtype.is_fp8(problem.a_dtype):
        return 3 * 2.0**-13 * math.sqrt(problem.k)
    cut = 0.0 if problem.precision == "ieee" else _CUT_SUMS * problem.k
    return 2.0**-20 * math.sqrt(problem.k) + cut
