"""Computes grouped products with torch's library, against which winners of the op `grouped_mm` are compared."""

from __future__ import annotations

import torch

from tuner.kernels.base.epilogue import activated
from tuner.kernels.grouped.operands import GroupedOperands, ListedOperands
from tuner.launch import compat


def vendor(operands: GroupedOperands | ListedOperands) -> None:
    """Compute the result by torch's grouped GEMM.

    It has no `out=`, so the result stays in new memory, because the time of a copy would count against it.

    Raises:
        NotImplementedError: torch has no such grouped GEMM, or only one that waits for the device.
    """
    vendor_result(operands)


def vendor_result(operands: GroupedOperands | ListedOperands) -> torch.Tensor:
    """The result [M, N] of torch's grouped GEMM, with the activation applied by a second call.

    Raises:
        NotImplementedError: see `vendor`.
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
