"""The op `gated_linear`: its operands, its reference and tolerance, and torch's own way."""

from __future__ import annotations

import contextlib
import functools
import math
from dataclasses import dataclass

import torch

from tuner.kernels.base import interpreted, numerics
from tuner.kernels.base.activations import activated
from tuner.kernels.base.operands import Values, Written, guarded, shift_of
from tuner.launch.torch_precision import torch_precision_set
from tuner.problem import Problem, dtype

launch_interpreted = interpreted.launch_interpreted
_RARE = 1e6


@dataclass(frozen=True, eq=False, slots=True)
class GatedOperands(Written):
    """The tensors of one gated linear layer.

    Attributes:
        a: [M, K], contiguous rows.
        b: [N, K], the weight of the gate, contiguous rows.
        up: [N, K], contiguous rows.
        out: [M, N], contiguous rows.
        problem: what is computed.
        buffer: the allocation that contains `out`, or `out` itself.
    """

    a: torch.Tensor
    b: torch.Tensor
    up: torch.Tensor
    out: torch.Tensor
    problem: Problem
    buffer: torch.Tensor


@functools.lru_cache(maxsize=4096)
def product(problem: Problem) -> Problem:
    """Both products as one, whose columns are gate's and up's: what a tile of the kernels costs.

    Raises:
        ProblemError: it has more columns than a product can have.
    """
    aligned = None if problem.aligned else False
    shape = problem.m, 2 * problem.n, problem.k
    return Problem(*shape, dtype=problem.a_dtype, layout="nt", precision=problem.precision, aligned=aligned)


def make_operands(problem: Problem, torch_device: str, seed: int) -> GatedOperands:
    """Draw x N(0, 1) and both weights N(0, 1/K), so that both products are N(0, 1).

    All tensors are contiguous; x and the weights start one element after a 16-byte address if the problem is not
    aligned though its sizes are. The arguments are those of `operands.make_operands`.

    Raises:
        ProblemError: the problem is declared aligned and its sizes cannot be.
    """
    shift, (m, n, k), kind = shift_of(problem), problem.shape, dtype.to_torch(problem.a_dtype)
    values = Values(torch_device, seed)
    a, gate, up = (values.matrix(rows, k, kind, False, shift) for rows in (m, n, n))
    if not gate.is_meta:
        for weight in (gate, up):
            weight.mul_(k**-0.5)
    out, buffer = guarded(m, n, kind, torch_device)
    return GatedOperands(a, gate, up, out, problem, buffer)


def reference(operands: GatedOperands) -> torch.Tensor:
    """The result in float64 [M, N]."""
    a, gate, up = (each.double() for each in (operands.a, operands.b, operands.up))
    return activated(a @ gate.t(), operands.problem.activation) * (a @ up.t())


def vendor(operands: GatedOperands) -> None:
    """Write the result of torch's library: two products, the activation, and the product of both.

    Raises:
        NotImplementedError: torch has no tf32x3.
    """
    problem = operands.problem
    if problem.precision == "tf32x3":
        raise NotImplementedError("torch has no tf32x3")
    with torch_precision_set(problem.precision) if problem.a_dtype == "float32" else contextlib.nullcontext():
        gate = torch.mm(operands.a, operands.b.t())
        up = torch.mm(operands.a, operands.up.t())
    torch.mul(activated(gate, problem.activation), up, out=operands.out)


def tolerance(problem: Problem) -> float:
    """Largest error of a correct result, in the measure of `tuner.sweep.verify.error`: over sqrt(K) + 1.

    It adds up the errors of rounding the output, of reading the operands and of summing, all at the largest value to
    be expected. Of two numbers N(0, 1) the product exceeds t less often than exp(-t), so that except for one problem in
    a million none of M·N products exceeds ln(M·N·10^6).
    """
    peak = math.log(problem.m * problem.n * _RARE)
    rounding = numerics.ROUNDOFF[problem.out_dtype]
    products = 2 * (numerics.OPERAND_ERROR[problem.precision] + 2.0**-20 * math.sqrt(problem.k))
    return (rounding + products) * peak / (math.sqrt(problem.k) + 1)


def bytes_moved(problem: Problem) -> int:
    """The bytes when x and both weights are read and the output is written once."""
    m, n, k = problem.shape
    return (m * k + 2 * n * k + m * n) * dtype.ITEMSIZE[problem.a_dtype]
