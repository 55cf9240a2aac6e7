"""The op `bmm`: its operands, which are `Operands` with a leading dimension, how they lie, and torch's own library."""

from __future__ import annotations

import contextlib
import math

import torch

from tuner.kernels.base import operands as matrices
from tuner.kernels.base.operands import (
    VECTOR_BYTES,
    Operands,
    Placement,
    Values,
    bias_dtype,
    count_of,
    guarded,
    shift_of,
)
from tuner.kernels.gemm.vendor import activate_in_place
from tuner.launch.torch_precision import torch_precision_set
from tuner.problem import Problem
from tuner.problem import dtype as dtypes


def batch_of(problem: Problem) -> int:
    """The number of products of a problem, see `count_of`."""
    return count_of(problem, "batch")


def placement(batch: torch.Tensor) -> Placement:
    """How the matrices of a batch [B, rows, columns] lie in memory.

    It is the `operands.placement` of each matrix, but `vector` divides the stride between matrices too.
    """
    first = matrices.placement(batch[0])
    between = batch.stride(0) if batch.shape[0] > 1 else 0
    return Placement(first.transposed, math.gcd(first.vector, between))


def is_aligned(*batches: torch.Tensor) -> bool:
    """Whether every batch's address, strides and contiguous extent is a multiple of 16 bytes."""
    return all(placement(batch).vector * batch.element_size() == VECTOR_BYTES for batch in batches)


def make_operands(problem: Problem, torch_device: str, seed: int) -> Operands:
    """Draw the operands of a problem of the op `bmm`: a [B, M, K], b [B, K, N], out [B, M, N], bias [N].

    Each matrix is made as by `operands.make_operands`.

    Raises:
        ProblemError: the problem has no batch, or is declared aligned and its sizes cannot be.
    """
    shift = shift_of(problem)
    batch, (m, n, k) = batch_of(problem), problem.shape
    values = Values(torch_device, seed)
    a = stacked(values, (batch, m, k), problem.a_dtype, problem.layout[0] == "t", shift)
    b = stacked(values, (batch, k, n), problem.b_dtype, problem.layout[1] == "t", shift)
    bias = values.vector(n, bias_dtype(problem)) if problem.has_bias else None
    out, buffer = guarded(batch * m, n, dtypes.to_torch(problem.out_dtype), torch_device)
    return Operands(a, b, out.view(batch, m, n), bias, problem, buffer)


def stacked(values: Values, shape: tuple[int, int, int], dtype: str, transposed: bool, shift: int) -> torch.Tensor:
    """A batch [B, rows, columns] of contiguous matrices, each stored row-major or transposed."""
    count, rows, columns = shape
    stored = values.vector(count * rows * columns, dtypes.to_torch(dtype), shift)
    return stored.view(count, columns, rows).mT if transposed else stored.view(shape)


def vendor(operands: Operands) -> None:
    """Write the output with one library call, then apply the activation in place.

    Raises:
        NotImplementedError: torch has no such batched GEMM.
    """
    problem = operands.problem
    if reason := _lacking(problem, operands.a.device):
        raise NotImplementedError(reason)
    fp32 = torch_precision_set(problem.precision) if problem.a_dtype == "float32" else contextlib.nullcontext()
    with fp32:
        if problem.out_dtype != problem.a_dtype:
            torch.bmm(operands.a, operands.b, out_dtype=torch.float32, out=operands.out)
        elif operands.bias is not None:
            torch.baddbmm(operands.bias, operands.a, operands.b, out=operands.out)
        else:
            torch.bmm(operands.a, operands.b, out=operands.out)
    activate_in_place(operands.out, problem.activation)


def _lacking(problem: Problem, device: torch.device) -> str | None:
    if problem.precision == "tf32x3":
        return "torch has no tf32x3"
    if dtypes.ITEMSIZE[problem.a_dtype] == 1:
        return f"torch.bmm takes no {problem.a_dtype}"
    widened = problem.out_dtype == "float32" and not problem.has_bias and device.type == "cuda"
    if problem.out_dtype != problem.a_dtype and not widened:
        return f"torch.bmm has no {problem.dtype_label}"
    return None
