"""Computes a call of any op by torch's library, in place of a kernel of which no binary ships (`tuner.strict`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from tuner.kernel import Inputs
from tuner.kernels.base.activations import saturated
from tuner.kernels.base.operands import Operands
from tuner.kernels.experts.operands import ExpertsOperands, by_expert
from tuner.kernels.gemm import vendor as gemm
from tuner.kernels.grouped import operands as grouped
from tuner.kernels.grouped.operands import GroupedOperands, ListedOperands
from tuner.problem import Problem, dtype


def compute(operands: Inputs, vendor: Callable[[Any], torch.Tensor | None]) -> None:
    """Write the output of a call.

    Args:
        operands: The operands that the op's kernels take.
        vendor: `KernelSpec.vendor` of the op.

    Raises:
        NotImplementedError: torch has no function for it; nothing was written.
    """
    if isinstance(operands, (GroupedOperands, ListedOperands)):
        _grouped(operands)
    elif isinstance(operands, Operands):
        _product(operands, vendor)
    elif isinstance(operands, ExpertsOperands):
        _experts(operands, vendor)
    elif (result := vendor(operands)) is not None:
        operands.output.copy_(result)  # of what torch writes into new memory alone


def _experts(operands: ExpertsOperands, vendor: Callable[[Any], None]) -> None:
    """By torch's grouped product, or else by one expert after the other, which waits to read who has tokens."""
    try:
        vendor(_of_experts(operands))
    except NotImplementedError:
        operands.out.copy_(by_expert(operands, operands.a.dtype, torch.float32))


def _of_experts(operands: ExpertsOperands) -> ExpertsOperands:
    """The same sums where each choice is an expert's: what is no expert's goes to the first, with a share of 0."""
    served = (operands.experts >= 0) & (operands.experts < len(operands.down))
    experts, shares = operands.experts.where(served, 0), operands.shares.where(served, 0)
    return replace(operands, experts=experts, shares=shares)


def _product(operands: Operands, vendor: Callable[[Any], None]) -> None:
    """By one function of torch's; where there is none with this epilogue, in float32, to which the rest is added."""
    problem, bias, out = operands.problem, operands.bias, operands.out
    try:
        if bias is not None and bias.dtype != out.dtype:
            raise NotImplementedError("torch adds a bias of the output's dtype")
        vendor(operands)
    except NotImplementedError:
        wide = _wide(problem)
        if wide == problem or problem.a_dtype == "int8":
            raise
        sums = torch.empty(out.shape, dtype=dtype.to_torch(wide.out_dtype), device=out.device)
        vendor(replace(operands, out=sums, bias=None, problem=wide, buffer=sums))
        sums = sums.float()
        if bias is not None:
            sums += bias
        gemm.activate_in_place(sums, problem.activation)
        out.copy_(saturated(sums, problem.out_dtype))


@functools.lru_cache(maxsize=4096)
def _wide(problem: Problem) -> Problem:
    """The problem without its epilogue, and with the widest result that torch has for it.

    Of float32, ieee stands in for tf32x3, which is a little less exact.
    """
    widest = "bfloat16" if problem.scaling == "row" else "float32"
    precision = "ieee" if problem.precision == "tf32x3" else problem.precision
    return Problem.from_fields({**problem.fields(), "out_dtype": widest, "epilogue": "none", "precision": precision})


def _grouped(operands: GroupedOperands | ListedOperands) -> None:
    """By torch's grouped product, or else by one product after the other, which waits to read where groups end."""
    if dtype.ITEMSIZE[operands.problem.a_dtype] == 1:
        raise NotImplementedError("torch has no grouped product of 8-bit operands")
    try:
        result = grouped.vendor(operands)
    except NotImplementedError:
        problem = _of_one_group(operands.problem)
        for product in operands.products:
            _product(replace(product, problem=problem), gemm.vendor)
        return
    assert isinstance(operands, GroupedOperands)
    rows = torch.arange(len(result), device=result.device)
    # Rows of no group stay as they are.
    operands.out.copy_(torch.where((rows < operands.ends[-1])[:, None], result, operands.out))


@functools.lru_cache(maxsize=4096)
def _of_one_group(problem: Problem) -> Problem:
    return Problem.from_fields({**problem.fields(), "op": "matmul", "extras": {}})
