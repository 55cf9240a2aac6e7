"""Compiles a problem's GEMM by TorchInductor's max-autotune, restricted to its Triton templates."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from tuner.kernels.base.activations import activated
from tuner.launch import compat
from tuner.launch.torch_precision import torch_precision_set
from tuner.problem import Problem, dtype


def refusal(problem: Problem) -> str | None:
    """Return why Inductor is not compared on a problem, or None when it is."""
    if problem.op != "matmul" or problem.extras:
        return "TorchInductor is compared on torch.mm, torch._scaled_mm and torch._int_mm alone"
    if problem.precision == "tf32x3":
        return "torch has no tf32x3"
    fp8 = dtype.is_fp8(problem.a_dtype)
    if not fp8 and problem.out_dtype != dtype.default_out(problem.a_dtype):
        return f"torch.mm has no {problem.dtype_label}"
    if problem.a_dtype == "int8" and problem.epilogue != "none":
        return "torch._int_mm has no epilogue"
    return None


def compiled(problem: Problem) -> Callable[[Any], torch.Tensor]:
    """Return the compiled GEMM of a problem for which `refusal` has no reason; its first call tunes.

    Without a Triton template for the problem, or on a GPU too small for the templates, that call raises, because with
    this one backend Inductor does not fall back to the vendor's library. Dynamo's caches are reset, since it stops
    compiling after a few problems.

    Returns:
        A function of operands of the op `matmul` (a [M, K], b [K, N], bias [N] or None) to a new output [M, N] of the
        problem's dtype. It uses neither scales, which are 1, nor `out`.
    """
    torch.compiler.reset()
    mode = compat.list_mode_options("max-autotune-no-cudagraphs")
    run = torch.compile(
        _product(problem), options={**mode, "max_autotune_gemm_backends": "TRITON"}, dynamic=False, fullgraph=True
    )

    def call(inputs: Any) -> torch.Tensor:
        # The setting is kept for every run, because Dynamo guards on it and would compile again under another.
        with torch_precision_set(problem.precision) if problem.a_dtype == "float32" else contextlib.nullcontext():
            out: torch.Tensor = run(inputs.a, inputs.b, inputs.bias)
        return out

    return call


def _product(problem: Problem) -> Callable[..., torch.Tensor]:
    activation = functools.partial(activated, activation=problem.activation)
    if dtype.is_fp8(problem.a_dtype):
        scaled_mm, one = compat.scaled_mm, torch.ones((), dtype=torch.float32, device="cuda")
        out_dtype = dtype.to_torch(problem.out_dtype)

        def product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            scaled = scaled_mm(a, b, one, one, bias=bias, out_dtype=out_dtype, use_fast_accum=True)
            return activation(scaled)

    elif problem.a_dtype == "int8":
        int_mm = compat.int_mm

        def product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG001
            return int_mm(a, b)

    else:

        def product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            return activation(torch.mm(a, b) if bias is None else torch.addmm(bias, a, b))

    return product
