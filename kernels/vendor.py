"""The same GEMM by torch's own libraries (cuBLAS, hipBLASLt): what every winner is compared with."""

from __future__ import annotations

import contextlib
import functools

import torch
from torch.nn import functional

from tuner import dtype as dtypes
from tuner.kernels.numerics import max_imprecise
from tuner.kernels.operands import Operands
from tuner.kernels.precision import torch_precision_set


def vendor(operands: Operands) -> None:
    """Write the output by torch: one library call, then the activation in place.

    Raises:
        NotImplementedError: torch has no such GEMM.
    """
    problem = operands.problem
    if problem.precision == "tf32x3":
        raise NotImplementedError("torch has no tf32x3")
    fp32 = torch_precision_set(problem.precision) if problem.a_dtype == "float32" else contextlib.nullcontext()
    with fp32:
        if dtypes.is_fp8(problem.a_dtype):
            _scaled_mm(operands)
        elif problem.out_dtype != problem.a_dtype:
            _widening_mm(operands)
        elif operands.bias is not None:
            torch.addmm(operands.bias, operands.a, operands.b, out=operands.out)
        else:
            torch.mm(operands.a, operands.b, out=operands.out)
    _activate_in_place(operands.out, problem.activation)


def _activate_in_place(out: torch.Tensor, activation: str) -> None:
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
    if dtypes.is_fp8(problem.out_dtype) and problem.activation != "none":
        raise NotImplementedError("torch has no activations of 8-bit floats")
    if operands.bias is not None and problem.out_dtype == "float32":
        raise NotImplementedError("torch._scaled_mm adds no bias to a float32 output")
    one = _one(operands.a.device)
    torch._scaled_mm(
        operands.a,
        operands.b,
        one,
        one,
        bias=operands.bias,
        out_dtype=operands.out.dtype,
        # The same accuracy as our kernel's: where that lets the tensor cores add up by themselves, so does this.
        use_fast_accum=max_imprecise(problem, 128) is None,
        out=operands.out,
    )


@functools.cache
def _one(device: torch.device) -> torch.Tensor:
    """A unit scale, made once: inside a captured graph it would be made anew with every replay."""
    return torch.ones((), dtype=torch.float32, device=device)
