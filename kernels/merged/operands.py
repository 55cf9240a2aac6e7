"""The op `merged_linear`: its operands, its reference, and torch's own way."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tuner.kernels.base.operands import Values, Written, guarded, shift_of
from tuner.launch.torch_precision import torch_precision_set
from tuner.problem import Problem, dtype
from tuner.problem.merged_parts import parts_of


@dataclass(frozen=True, eq=False, slots=True)
class MergedOperands(Written):
    """The tensors of one input's products with two or three weights.

    Attributes:
        a: [M, K], contiguous rows.
        b, second, third: [N_i, K], the weights, contiguous rows that are equally far apart; `third` may be None.
        bias, second_bias, third_bias: [N_i], their biases, contiguous; None where they have none.
        out: [M, N], contiguous. Its memory holds the products [M, N_i] one after another, each of them contiguous.
        problem: what is computed; its N is the sum of the weights' N_i.
        buffer: the allocation that contains `out`, or `out` itself.
    """

    a: torch.Tensor
    b: torch.Tensor
    second: torch.Tensor
    third: torch.Tensor | None
    bias: torch.Tensor | None
    second_bias: torch.Tensor | None
    third_bias: torch.Tensor | None
    out: torch.Tensor
    problem: Problem
    buffer: torch.Tensor

    @property
    def weights(self) -> tuple[torch.Tensor, ...]:
        """All weights."""
        return (self.b, self.second) if self.third is None else (self.b, self.second, self.third)

    @property
    def biases(self) -> tuple[torch.Tensor | None, ...]:
        """The bias of each weight."""
        return (self.bias, self.second_bias, self.third_bias)[: len(self.weights)]


def in_places(  # noqa: PLR0917
    a: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    out: torch.Tensor,
    problem: Problem,
    buffer: torch.Tensor,
) -> MergedOperands:
    """The operands of two or three weights, and of as many biases or none."""
    b, second, third = (*weights, None)[:3]
    assert b is not None
    assert second is not None
    bias, second_bias, third_bias = (*biases, None, None, None)[:3]
    return MergedOperands(a, b, second, third, bias, second_bias, third_bias, out, problem, buffer)


def split(flat: torch.Tensor, lead: Sequence[int], widths: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """The products [*lead, N_i], as views of the vector that holds them one after another."""
    rows = flat.shape[0] // sum(widths)
    parts = flat.split_with_sizes([rows * width for width in widths])
    return tuple(part.view(*lead, width) for part, width in zip(parts, widths, strict=True))


@functools.lru_cache(maxsize=4096)
def product(problem: Problem) -> Problem:
    """All products as one, by a weight that has the rows of each: what a tile of the kernel costs."""
    aligned = None if problem.aligned else False
    return Problem(*problem.shape, dtype=problem.a_dtype, layout="nt", precision=problem.precision, aligned=aligned)


def make_operands(problem: Problem, torch_device: str, seed: int) -> MergedOperands:
    """Draw x, all weights and biases N(0, 1).

    All tensors are contiguous; x and the weights start one element after a 16-byte address if the problem is not
    aligned though its sizes are. The arguments are those of `operands.make_operands`.

    Raises:
        ProblemError: the problem is declared aligned and its sizes cannot be.
    """
    shift, (m, n, k), kind = shift_of(problem), problem.shape, dtype.to_torch(problem.a_dtype)
    values = Values(torch_device, seed)
    a, *weights = (values.matrix(rows, k, kind, False, shift) for rows in (m, *parts_of(problem)))
    out, buffer = guarded(m, n, kind, torch_device)
    biases = [values.vector(width, kind) for width in parts_of(problem)] if problem.has_bias else ()
    return in_places(a, weights, biases, out, problem, buffer)


def reference(operands: MergedOperands) -> torch.Tensor:
    """The result in float64 [M, N], in the order of the output's memory."""
    a = operands.a.double()
    products = [
        a @ weight.double().t() + (0.0 if bias is None else bias.double())
        for weight, bias in zip(operands.weights, operands.biases, strict=True)
    ]
    return torch.cat([each.flatten() for each in products]).view(operands.out.shape)


def vendor(operands: MergedOperands) -> None:
    """Write the result of torch's library: a product for each weight.

    Raises:
        NotImplementedError: torch has no tf32x3.
    """
    problem = operands.problem
    if problem.precision == "tf32x3":
        raise NotImplementedError("torch has no tf32x3")
    with torch_precision_set(problem.precision) if problem.a_dtype == "float32" else contextlib.nullcontext():
        outs = split(operands.out.view(-1), (problem.m,), parts_of(problem))
        for weight, bias, out in zip(operands.weights, operands.biases, outs, strict=True):
            if bias is None:
                torch.mm(operands.a, weight.t(), out=out)
            else:
                torch.addmm(bias, operands.a, weight.t(), out=out)
