"""The op `softmax`: its inputs, what its result must be, and torch's own."""

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
"""Relative error of an element in float32: 128 roundings, see docs/numerics.md."""
_SUBNORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}
"""The smallest normal number of each dtype, below which its spacing is constant."""
_RARE = 1e6


def make_inputs(problem: Problem, torch_device: str, seed: int) -> Tensors:
    """A matrix N(0, 1) [M, N], stored row-major or (layout tn) transposed, and a contiguous output.

    That of a problem that is not aligned though its sizes would be begins one element off a 16-byte address.

    Args:
        problem: of the op `softmax`.
        torch_device: "cuda:0", "cpu", or "meta" for tensors without memory, to compile for.
        seed: seed of the random values.

    Raises:
        ProblemError: K is not 1, or the problem says it is aligned and its sizes cannot be.
    """
    if problem.k != 1:
        raise ProblemError(f"{problem}: expected a K of 1, as Problem(M, N, 1, op='softmax')")
    shift = shift_of(problem)
    dtype, values = dtypes.to_torch(problem.a_dtype), Values(torch_device, seed)
    x = values.matrix(problem.m, problem.n, dtype, problem.layout[0] == "t", shift)
    out, buffer = guarded(problem.m, problem.n, dtype, torch_device)
    return Tensors(x, None, out, problem, buffer)


def vendor(inputs: Tensors) -> None:
    """torch's own softmax, into the same output."""
    torch.softmax(inputs.a, dim=1, out=inputs.out)


def reference(inputs: Tensors) -> torch.Tensor:
    """The result in float64 [M, N]."""
    return torch.softmax(inputs.a.double(), dim=1)


def tolerance(problem: Problem) -> float:
    """Largest error of a right result, in the measure of `tuner.sweep.verify.error`: |out - reference| / 2.

    What rounding the output costs at the largest value to be expected, and what float32 arithmetic costs there. Long
    rows have small values: the rule shrinks with N.
    """
    peak = _peak(problem)
    rounding = ROUNDOFF[problem.out_dtype] * max(peak, _SUBNORMAL[problem.out_dtype])
    return (rounding + _ARITHMETIC * peak) / 2


def _peak(problem: Problem) -> float:
    """A bound on the largest element: e^t over itself and the least that the rest of its row adds up to.

    Of M·N values N(0, 1) none is beyond t = sqrt(2·ln(M·N·10^6)), but for one problem in a million. The others' powers
    are at least (N - 1) times that of their mean (Jensen), which is above -t / sqrt(N - 1).
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
    # A comparison, a difference, a power, a sum and a product for each element.
    flops=lambda problem: 5 * problem.m * problem.n,
    bytes_moved=lambda problem: 2 * problem.m * problem.n * dtypes.ITEMSIZE[problem.a_dtype],
)
