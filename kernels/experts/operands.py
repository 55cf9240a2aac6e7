"""The op `fused_experts`: its operands, its reference and tolerance, and torch's own way."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tuner.errors import ProblemError
from tuner.kernels.base import interpreted, numerics
from tuner.kernels.base.activations import activated
from tuner.kernels.base.operands import Values, Written, count_of, guarded, shift_of
from tuner.launch import compat
from tuner.problem import Problem, dtype

GROUPS, TOP_K = "groups", "top_k"
"""The extras that hold the number of experts, and how many of them a token is sent to."""
launch_interpreted = interpreted.launch_interpreted


@dataclass(frozen=True, eq=False, slots=True)
class ExpertsOperands(Written):
    """The tensors of one mixture of experts.

    Attributes:
        a: [M, K], the tokens, contiguous rows.
        b: [E, 2 * N, K], the experts' gate and up weights, contiguous rows.
        down: [E, K, N], contiguous rows.
        out: [M, K], contiguous rows.
        experts: int32 or int64 [M, top_k], contiguous; a number that is no expert's leaves its slot out.
        shares: [M, top_k], contiguous, float32 or of a's dtype.
        problem: what is computed.
        buffer: the allocation that contains `out`, or `out` itself.
    """

    a: torch.Tensor
    b: torch.Tensor
    down: torch.Tensor
    out: torch.Tensor
    experts: torch.Tensor
    shares: torch.Tensor
    problem: Problem
    buffer: torch.Tensor


def experts_of(problem: Problem) -> int:
    """The number of experts, see `count_of`."""
    return count_of(problem, GROUPS)


def top_k_of(problem: Problem) -> int:
    """How many experts a token is sent to, see `count_of`."""
    return count_of(problem, TOP_K)


def make_operands(problem: Problem, torch_device: str, seed: int) -> ExpertsOperands:
    """Draw tokens N(0, 1), weights N(0, 1/K) and N(0, 1/N), `top_k` experts of each token, and shares that add up to 1.

    All tensors are contiguous; tokens and weights start one element after a 16-byte address if the problem is not
    aligned though its sizes are. Other arguments are those of `operands.make_operands`.

    Raises:
        ProblemError: experts or top_k are missing, a token would have more experts than there are, or the problem is
            declared aligned and its sizes cannot be.
    """
    experts, top_k, shift = experts_of(problem), top_k_of(problem), shift_of(problem)
    if top_k > experts:
        raise ProblemError(f"{problem}: top_k is {top_k} of {experts} experts")
    (m, n, k), kind = problem.shape, dtype.to_torch(problem.a_dtype)
    values = Values(torch_device, seed)
    a = values.matrix(m, k, kind, False, shift)
    b = _scaled(values.vector(experts * 2 * n * k, kind, shift), k).view(experts, 2 * n, k)
    down = _scaled(values.vector(experts * k * n, kind, shift), n).view(experts, k, n)
    out, buffer = guarded(m, k, kind, torch_device)
    scores = values.vector(m * experts, torch.float32).view(m, experts)
    shares, chosen = torch.topk(scores.softmax(-1), top_k, dim=-1)
    return ExpertsOperands(a, b, down, out, chosen, shares / shares.sum(-1, keepdim=True), problem, buffer)


def _scaled(weights: torch.Tensor, length: int) -> torch.Tensor:
    return weights if weights.is_meta else weights.mul_(length**-0.5)


def reference(operands: ExpertsOperands) -> torch.Tensor:
    """The result in float64 [M, K]."""
    return by_expert(operands, torch.float64, torch.float64)


def by_expert(operands: ExpertsOperands, multiplied: torch.dtype, summed: torch.dtype) -> torch.Tensor:
    """The result [M, K], one expert after the other, which waits to read who has tokens.

    Args:
        operands: what is computed.
        multiplied, summed: the dtypes of the products and of the sums.
    """
    result = torch.zeros(operands.out.shape, dtype=summed, device=operands.out.device)
    for expert, (gate_up, down) in enumerate(zip(operands.b, operands.down, strict=True)):
        tokens, choices = torch.where(operands.experts == expert)
        gate, up = (operands.a[tokens].to(multiplied) @ gate_up.to(multiplied).t()).chunk(2, dim=-1)
        rows = (activated(gate, operands.problem.activation) * up) @ down.to(multiplied).t()
        result.index_add_(0, tokens, rows.to(summed) * operands.shares[tokens, choices, None].to(summed))
    return result


def vendor(operands: ExpertsOperands) -> None:
    """Write the result of torch's grouped GEMM and torch's own sorting, gathering and summing.

    Raises:
        NotImplementedError: torch has no such grouped GEMM, or only one that waits for the device.
    """
    problem, device = operands.problem, operands.a.device
    if compat.grouped_mm is None:
        raise NotImplementedError("this torch has no grouped GEMM")
    if problem.a_dtype != "bfloat16":
        raise NotImplementedError(f"torch's grouped GEMM takes bfloat16, not {problem.a_dtype}")
    if device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(device)[0] != 9):
        raise NotImplementedError("torch's grouped GEMM is a loop that waits for the device, but on sm_90")
    if not problem.aligned:
        raise NotImplementedError("torch's grouped GEMM takes operands that are aligned to 16 bytes")
    (tokens, top_k), experts = operands.experts.shape, len(operands.b)
    found, order = torch.sort(operands.experts.view(-1))
    bounds = torch.arange(experts, device=device, dtype=found.dtype)
    ends = torch.searchsorted(found, bounds, right=True, out_int32=True)
    gate_up = compat.grouped_mm(operands.a[order // top_k], operands.b.mT, offs=ends)
    gate, up = gate_up.chunk(2, dim=-1)
    rows = compat.grouped_mm(activated(gate, problem.activation) * up, operands.down.mT, offs=ends)
    slots = torch.empty_like(rows).index_copy_(0, order, rows)
    shared = slots.view(tokens, top_k, -1) * operands.shares.to(slots.dtype).unsqueeze(-1)
    torch.sum(shared, dim=1, out=operands.out)


def tolerance(problem: Problem) -> float:
    """Largest error of a correct result, in the measure of `tuner.sweep.verify.error`: over sqrt(K) + 1.

    Gate and up are N(0, 1) and their product at most some 30 in its tail, of which down takes a mean over N: a slot is
    within `peak`, its roundings (of the hidden values, of the slot, and of the result) are each relative to it, and
    shares add up to 1. Sums in float32 and operands read as TF32 add theirs, twice (docs/numerics.md).
    """
    peak = 7.4 + 62 / math.sqrt(problem.n)
    rounding = 3 * numerics.ROUNDOFF[problem.out_dtype]
    reading = 2 * numerics.OPERAND_ERROR[problem.precision]
    sums = 2.0**-20 * (math.sqrt(problem.k) + math.sqrt(problem.n))
    return (rounding + reading + sums) * peak / (math.sqrt(problem.k) + 1)


def bytes_moved(problem: Problem) -> int:
    """The fewest bytes where tokens are sent to as many experts as they can be: weights, tokens in and out."""
    used = min(experts_of(problem), problem.m * top_k_of(problem))
    size = dtype.ITEMSIZE[problem.a_dtype]
    return (used * 3 * problem.n * problem.k + 2 * problem.m * problem.k) * size
