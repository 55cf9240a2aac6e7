"""Computes a batch of products with torch's library, against which winners of the op `bmm` are compared."""

from __future__ import annotations

import contextlib

import torch

from tuner.kernels.base.operands import Operands
from tuner.kernels.gemm.vendor import activate_in_place
from tuner.launch.torch_precision import torch_precision_set
from tuner.problem import Problem, dtype


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
    if dtype.ITEMSIZE[problem.a_dtype] == 1:
        return f"torch.bmm takes no {problem.a_dtype}"
    widened = problem.out_dtype == "float32" and not problem.has_bias and device.type == "cuda"
    if problem.out_dtype != problem.a_dtype and not widened:
        return f"torch.bmm has no {problem.dtype_label}"
    return None
