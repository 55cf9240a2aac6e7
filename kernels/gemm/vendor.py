"""Computes a GEMM with torch's libraries (cuBLAS, hipBLASLt), against which every winner is compared."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import replace

import torch
from torch.nn import functional

from tuner.kernels.base.operands import Operands
from tuner.launch import compat
from tuner.launch.torch_precision import torch_precision_set
from tuner.problem import dtype


def vendor(operands: Operands) -> None:
    """Write the output with one library call, then apply the activation in place.

    Raises:
        NotImplementedError: torch has no such GEMM.
    """
    problem = operands.problem
    if problem.precision == "tf32x3":
        raise NotImplementedError("torch has no tf32x3")
    if dtype.ITEMSIZE[problem.a_dtype] == 1 and not operands.out.is_contiguous():
        # torch._int_mm refuses such an output, and torch._scaled_mm may write a copy of it instead, which is dropped.
        written = torch.empty(operands.out.shape, dtype=operands.out.dtype, device=operands.out.device)
        vendor(replace(operands, out=written))
        operands.out.copy_(written)
        return
    fp32 = torch_precision_set(problem.precision) if problem.a_dtype == "float32" else contextlib.nullcontext()
    with fp32:
        if dtype.is_fp8(problem.a_dtype):
            _scaled_mm(operands)
        elif problem.a_dtype == "int8":
            _int_mm(operands)
        elif problem.out_dtype != problem.a_dtype:
            _widening_mm(operands)
        elif operands.bias is not None:
            torch.addmm(operands.bias, operands.a, operands.b, out=operands.out)
        else:
            torch.mm(operands.a, operands.b, out=operands.out)
    activate_in_place(operands.out, problem.activation)


def activate_in_place(out: torch.Tensor, activation: str) -> None:
    """Apply an activation of `tuner.problem.problem.ACTIVATIONS` in place, with torch."""
    if activation == "relu":
        torch.relu_(out)
    elif activation == "leaky_relu":
        functional.leaky_relu(out, 0.01, inplace=True)
    elif activation == "gelu":
        torch.ops.aten.gelu_(out, approximate="tanh")
    elif activation == "silu":
        functional.silu(out, inplace=True)


def _widening_mm(operands: Operands) -> None:
    problem = operands.problem
    if problem.out_dtype != "float32" or operands.bias is not None or operands.a.device.type != "cuda":
        raise NotImplementedError(f"torch.mm has no {problem.dtype_label}")
    torch.mm(operands.a, operands.b, out_dtype=torch.float32, out=operands.out)


def _scaled_mm(operands: Operands) -> None:
    problem = operands.problem
    if problem.layout != "nt" or problem.n % 16 or problem.k % 16 or operands.a.device.type != "cuda":
        raise NotImplementedError("torch._scaled_mm takes layout nt, N and K multiples of 16, on a GPU")
    if problem.a_dtype == problem.b_dtype == "float8_e5m2":
        raise NotImplementedError("cuBLAS has no float8_e5m2 * float8_e5m2")
    if dtype.is_fp8(problem.out_dtype) and problem.activation != "none":
        raise NotImplementedError("torch has no activations of 8-bit floats")
    if operands.bias is not None and problem.out_dtype == "float32":
        raise NotImplementedError("torch._scaled_mm adds no bias to a float32 output")
    if problem.scaling == "block":
        _block_scaled_mm(operands)
        return
    if problem.scaling == "row" and problem.out_dtype != "bfloat16":
        raise NotImplementedError("torch._scaled_mm writes bfloat16 with a scale for each row")
    scale_a, scale_b = operands.scale_a, operands.scale_b
    if scale_a is None or scale_b is None:
        scale_a = scale_b = _one(operands.a.device)
    elif problem.scaling == "row":
        scale_a, scale_b = scale_a.view(-1, 1), scale_b.view(1, -1)
    compat.scaled_mm(
        operands.a,
        operands.b,
        scale_a,
        scale_b,
        bias=operands.bias,
        out_dtype=operands.out.dtype,
        # The accuracy is the same as our kernels': both accumulate in the tensor cores, or neither does.
        use_fast_accum=problem.fast_accum,
        out=operands.out,
    )


def _block_scaled_mm(operands: Operands) -> None:
    problem, scale_a, scale_b = operands.problem, operands.scale_a, operands.scale_b
    assert scale_a is not None
    assert scale_b is not None
    blocks = scale_b.shape[0]
    if not hasattr(functional, "scaled_mm") or problem.out_dtype not in ("bfloat16", "float32"):
        raise NotImplementedError("torch scales by blocks from 2.10 on, and writes bfloat16 or float32")
    # torch requires A's scales column by column, and B's in rows of the weight with a multiple of 4 blocks.
    if blocks % 4 or scale_b.stride() != (1, blocks) or scale_a.stride() != (1, problem.m):
        raise NotImplementedError("torch scales by blocks with K a multiple of 512")
    compat.scaled_mm_v2(
        operands.a,
        operands.b,
        [scale_a],
        [functional.ScalingType.BlockWise1x128.value],
        [],
        [scale_b],
        [functional.ScalingType.BlockWise128x128.value],
        [],
        operands.bias,
        operands.out.dtype,
        out=operands.out,
    )


def _int_mm(operands: Operands) -> None:
    problem = operands.problem
    if problem.scaling != "none":
        raise NotImplementedError("torch has no scaled int8 GEMM")
    if operands.a.device.type == "cuda" and (problem.m <= 16 or problem.n % 8 or problem.k % 8):
        raise NotImplementedError("torch._int_mm takes M above 16, N and K multiples of 8 on a GPU")
    compat.int_mm(operands.a, operands.b, out=operands.out)


@functools.cache
def _one(device: torch.device) -> torch.Tensor:
    """A scale of 1, cached because a captured graph would otherwise make it again with every replay."""
    return torch.ones((), dtype=torch.float32, device=device)
