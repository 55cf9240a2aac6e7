"""The op `softmax`: its inputs, its reference and tolerance, and torch's implementation."""

from __future__ import annotations

import math

import torch

from tuner.errors import ProblemError
from tuner.kernels.base.numerics import ROUNDOFF
from tuner.kernels.base.operands import Values, guarded, shift_of
from tuner.kernels.base.program import Operation
from tuner.kernels.elementwise.spec import Tensors, launch_interpreted
from tuner.problem import Problem
from tuner.problem import dtype as dtypes

_ARITHMETIC = 2.0**-17
"""Relative error of an element in float32, from 128 roundings (docs/numerics.md)."""
_SUBNORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}
"""The smallest normal number of each dtype, below which its spacing is constant."""
_RARE = 1e6


def make_inputs(problem: Problem, torch_device: str, seed: int) -> Tensors:
    """Draw a matrix N(0, 1) [M, N], stored row-major or (layout tn) transposed, and make a contiguous output.

    The matrix starts one element after a 16-byte address if the problem is not aligned though its sizes are.

    The arguments are those of `operands.make_operands`.

    Raises:
        ProblemError: K is not 1, or the problem is declared aligned and its sizes cannot be.
    """
    if problem.k != 1:
        raise ProblemError(f"{problem}: expected a K of 1, as Problem(M, N, 1, op='softmax')")
    shift = shift_of(problem)
    dtype, values = dtypes.to_torch(problem.a_dtype), Values(torch_device, seed)
    x = values.matrix(problem.m, problem.n, dtype, problem.layout[0] == "t", shift)
    out, buffer = guarded(problem.m, problem.n, dtype, torch_device)
    return Tensors(x, None, out, problem, buffer)


def vendor(inputs: Tensors) -> None:
    """Write torch's softmax into the output."""
    torch.softmax(inputs.a, dim=1, out=inputs.out)


def reference(inputs: Tensors) -> torch.Tensor:
    """The result in float64 [M, N]."""
    return torch.softmax(inputs.a.double(), dim=1)


def tolerance(problem: Problem) -> float:
    """Largest error of a correct result, in the measure of `tuner.sweep.verify.error`: |out - reference| / 2.

    It adds up the errors of rounding the output and of float32 arithmetic at the largest value to be expected. Long
    rows have small values, so the tolerance shrinks with N.
    """
    peak = _peak(problem)
    rounding = ROUNDOFF[problem.out_dtype] * max(peak, _SUBNORMAL[problem.out_dtype])
    return (rounding + _ARITHMETIC * peak) / 2


def _peak(problem: Problem) -> float:
    """A bound on the largest element: e^t divided by the sum of e^t and the smallest sum of the rest of its row.

    Except for one problem in a million, none of M·N values N(0, 1) exceeds t = sqrt(2·ln(M·N·10^6)). The sum of the
    others' exponentials is at least (N - 1) times that of their mean (Jensen), which is above -t / sqrt(N - 1).
    """
    highest = math.sqrt(2 * math.log(problem.m * problem.n * _RARE))
    others = problem.n - 1
    rest = others * math.exp(-highest / math.sqrt(others)) if others else 0.0
    return math.exp(highest) / (math.exp(highest) + rest)


SOFTMAX = Operation(
    "softmax",
    make_inputs,
    vendor,
    reference,
    launch_interpreted,
    tolerance,
    # Each element takes a comparison, a difference, an exponential, a sum and a product.
    flops=lambda problem: 5 * problem.m * problem.n,
    bytes_moved=lambda problem: 2 * problem.m * problem.n * dtypes.ITEMSIZE[problem.a_dtype],
)
