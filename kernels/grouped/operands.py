"""The op `grouped_mm`: its operands, groups of rows or lists of matrices, its reference, and torch's own library."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tuner.kernel.config import Config
from tuner.kernels.base import interpreted
from tuner.kernels.base.activations import activated
from tuner.kernels.base.numerics import reference as matrix_reference
from tuner.kernels.base.operands import Operands, Values, Written, bias_dtype, count_of, guarded, shift_of
from tuner.kernels.batched.operands import stacked
from tuner.launch import compat
from tuner.problem import Problem, dtype

Run = Callable[["GroupedOperands | ListedOperands", Config], None]


@dataclass(frozen=True, eq=False, slots=True)
class GroupedOperands(Written):
    """Groups of rows, each of which is multiplied by its own matrix.

    Attributes:
        a: [M, K], any strides.
        b: [G, K, N], any strides.
        out: [M, N], any strides that do not overlap.
        bias: [G, N], contiguous, or None.
        ends: int32 [G], contiguous, in ascending order: one past each group's last row. Only the device reads it.
        problem: what is computed.
        buffer: the allocation that contains `out`, or `out` itself.
    """

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    bias: torch.Tensor | None
    ends: torch.Tensor
    problem: Problem
    buffer: torch.Tensor

    @property
    def products(self) -> list[Operands]:
        """The operands of each group; reading `ends` waits for the device."""
        bounds = itertools.pairwise((0, *self.ends.tolist()))
        biases = itertools.repeat(None) if self.bias is None else self.bias
        return [
            Operands(self.a[first:beyond], b, self.out[first:beyond], bias, self.problem, self.buffer)
            for (first, beyond), b, bias in zip(bounds, self.b, biases, strict=False)
        ]


@dataclass(frozen=True, slots=True)
class ListedOperands:
    """A list of products of any sizes.

    Attributes:
        a, b, out: [M_i, K_i], [K_i, N_i] and [M_i, N_i], any strides; those of `out` do not overlap.
        problem: what is computed.
        output: all of `out` as one tensor, which only the tuner needs.
        buffer: the allocation that contains `output`.
    """

    a: tuple[torch.Tensor, ...]
    b: tuple[torch.Tensor, ...]
    out: tuple[torch.Tensor, ...]
    problem: Problem
    output: torch.Tensor
    buffer: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Size of the operands and the output in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (*self.a, *self.b, *self.out))

    @property
    def products(self) -> list[Operands]:
        """The operands of each product."""
        return [
            Operands(a, b, out, None, self.problem, self.buffer)
            for a, b, out in zip(self.a, self.b, self.out, strict=True)
        ]


def groups_of(problem: Problem) -> int:
    """The number of groups of a problem, see `count_of`."""
    return count_of(problem, "groups")


def is_listed(problem: Problem) -> bool:
    """Whether the operands come as lists of matrices."""
    return bool(dict(problem.extras).get("listed", False))


def make_operands(problem: Problem, torch_device: str, seed: int) -> GroupedOperands | ListedOperands:
    """Draw the operands of a problem of the op `grouped_mm`, with its M rows in groups of random sizes.

    The matrices of lists are views of the same tensors and share N and K.

    Raises:
        ProblemError: the problem has no groups, or is declared aligned and its sizes cannot be.
    """
    shift = shift_of(problem)
    groups, (m, n, k) = groups_of(problem), problem.shape
    values = Values(torch_device, seed)
    a = values.matrix(m, k, dtype.to_torch(problem.a_dtype), problem.layout[0] == "t", shift)
    b = stacked(values, (groups, k, n), problem.b_dtype, problem.layout[1] == "t", shift)
    bias = values.vector(groups * n, bias_dtype(problem)).view(groups, n) if problem.has_bias else None
    out, buffer = guarded(m, n, dtype.to_torch(problem.out_dtype), torch_device)
    ends = ragged_ends(m, groups, seed)
    if is_listed(problem):
        bounds = list(itertools.pairwise((0, *ends)))
        rows, results = (tuple(matrix[first:beyond] for first, beyond in bounds) for matrix in (a, out))
        return ListedOperands(rows, tuple(b), results, problem, out, buffer)
    device_ends = torch.tensor(ends, dtype=torch.int32).to(torch_device)
    return GroupedOperands(a, b, out, bias, device_ends, problem, buffer)


def ragged_ends(rows: int, groups: int, seed: int) -> list[int]:
    """The ends of groups that cover all rows, with 0.5 to 1.5 times the average size before rounding."""
    draw = random.Random(seed)
    sums = list(itertools.accumulate(draw.uniform(0.5, 1.5) for _ in range(groups)))
    return [round(rows * part / sums[-1]) for part in sums]


def reference(operands: GroupedOperands | ListedOperands) -> torch.Tensor:
    """The products of all groups in float64, one below the other [M, N]."""
    return torch.cat([matrix_reference(product) for product in operands.products])


def launch_grouped_interpreted(operands: GroupedOperands | ListedOperands, config: Config, run: Run) -> None:
    """`interpreted.launch_interpreted` for both kinds of operands."""
    if isinstance(operands, GroupedOperands):
        interpreted.launch_interpreted(operands, config, run)
        return
    a, b = (tuple(map(interpreted.widened, matrices)) for matrices in (operands.a, operands.b))
    out = tuple(map(interpreted.output_for, operands.out))
    problem = interpreted.widened_problem(operands.problem)
    with interpreted.ignore_float_warnings():
        run(dataclasses.replace(operands, a=a, b=b, out=out, problem=problem), config)
    for written, result in zip(out, operands.out, strict=True):
        interpreted.copy_rounded(written, result)


def vendor(operands: GroupedOperands | ListedOperands) -> torch.Tensor:
    """The result [M, N] of torch's grouped GEMM, with the activation applied by a second call.

    It has no `out=`, so the result stays in new memory, because the time of a copy would count against it.

    Raises:
        NotImplementedError: torch has no such grouped GEMM, or only one that waits for the device.
    """
    if isinstance(operands, ListedOperands):
        raise NotImplementedError("torch has no grouped GEMM of lists")
    if reason := _lacking(operands):
        raise NotImplementedError(reason)
    result = compat.grouped_mm(operands.a, operands.b, offs=operands.ends)
    return activated(result, operands.problem.activation)


def _lacking(operands: GroupedOperands) -> str | None:
    problem, device = operands.problem, operands.a.device
    if compat.grouped_mm is None:
        return "this torch has no grouped GEMM"
    if problem.a_dtype != "bfloat16" or problem.out_dtype != "bfloat16":
        return f"torch's grouped GEMM takes bfloat16, not {problem.dtype_label}"
    if problem.has_bias:
        return "torch's grouped GEMM adds no bias"
    if device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(device)[0] != 9):
        return "torch's grouped GEMM is a loop that waits for the device, but on sm_90"
    if problem.layout[0] != "n" or not problem.aligned:
        return "torch's grouped GEMM takes rows of A that are contiguous, all operands aligned to 16 bytes"
    return None
