"""The op `rms_norm`: its inputs, its reference and tolerance, and torch's implementation."""

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

EPS = "eps"
"""The extra that holds what is added to the mean of the squares."""
_ARITHMETIC = 2.0**-17
"""Relative error of an element in float32, from 128 roundings (docs/numerics.md)."""
_RARE = 1e6


def eps_of(problem: Problem) -> float:
    """What a problem adds to the mean of the squares."""
    return float(problem[EPS])


def make_inputs(problem: Problem, torch_device: str, seed: int) -> Tensors:
    """Draw a matrix N(0, 1) [M, N] and a weight N(0, 1) [N], and make a contiguous output.

    Every other row is scaled by the root of eps, so that a result with another eps is wrong. Matrix and weight start
    one element after a 16-byte address if the problem is not aligned though its sizes are.

    The arguments are those of `operands.make_operands`.

    Raises:
        ProblemError: K is not 1, or the problem is declared aligned and its sizes cannot be.
    """
    if problem.k != 1:
        raise ProblemError(f"{problem}: expected a K of 1, as Problem(M, N, 1, op='rms_norm', extras={{'eps': 1e-6}})")
    shift = shift_of(problem)
    dtype, values = dtypes.to_torch(problem.a_dtype), Values(torch_device, seed)
    x = values.matrix(problem.m, problem.n, dtype, False, shift)
    if not x.is_meta:
        x[::2] *= math.sqrt(eps_of(problem))
    weight = values.vector(problem.n, dtype, shift)
    out, buffer = guarded(problem.m, problem.n, dtype, torch_device)
    return Tensors(x, weight, out, problem, buffer)


def vendor(inputs: Tensors) -> torch.Tensor:
    """Torch's RMSNorm, in new memory: it has no `out=`, and the time of a copy would count against it.

    With an offset it is computed in float32, because in x's dtype torch would round the sum of offset and weight.
    """
    x, weight = inputs.a, inputs.b
    if inputs.offset:
        assert weight is not None
        x, weight = x.float(), weight.float() + inputs.offset
    result: torch.Tensor = torch.nn.functional.rms_norm(x, x.shape[1:], weight, eps_of(inputs.problem))
    return result


def reference(inputs: Tensors) -> torch.Tensor:
    """The result in float64 [M, N]."""
    assert inputs.b is not None
    x, weight = inputs.a.double(), inputs.b.double() + inputs.offset
    return x / (x.square().mean(dim=1, keepdim=True) + eps_of(inputs.problem)).sqrt() * weight


def tolerance(problem: Problem) -> float:
    """Largest error of a correct result, in the measure of `tuner.sweep.verify.error`: |out - reference| / 2.

    It adds up the errors of rounding the output and of float32 arithmetic at the largest value to be expected.
    """
    return (ROUNDOFF[problem.out_dtype] + _ARITHMETIC) * _peak(problem) / 2


def _peak(problem: Problem) -> float:
    """A bound on the largest element: that of a row over the row's root mean square, times that of the weight.

    Of a row of N no element exceeds sqrt(N) times the root mean square. Except for one problem in a million, none of
    M·N values N(0, 1) exceeds t = sqrt(2·s) with s = ln(M·N·10^6), and no row's mean square is below
    1 - 2·sqrt(s / N) (Laurent and Massart, Adaptive estimation of a quadratic functional, lemma 1).
    """
    s = math.log(problem.m * problem.n * _RARE)
    least = 1 - 2 * math.sqrt(s / problem.n)
    highest = math.sqrt(problem.n)
    if least > 0:
        highest = min(highest, math.sqrt(2 * s / least))
    return highest * math.sqrt(2 * math.log(problem.n * _RARE))


RMS_NORM = Operation(
    "rms_norm",
    make_inputs,
    vendor,
    reference,
    launch_interpreted,
    tolerance,
    # Each element takes a square, a sum and two products.
    flops=lambda problem: 4 * problem.m * problem.n,
    bytes_moved=lambda problem: (2 * problem.m + 1) * problem.n * dtypes.ITEMSIZE[problem.a_dtype],
)
