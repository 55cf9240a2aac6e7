"""The op `bmm`: a repeated call runs its launch plan; any other is checked, looked up and launched.

torch.compile and torch.export see it as the operator `triton_tuner::bmm`, unless it is given `out`.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from tuner.errors import InputError
from tuner.kernels.base.operands import Operands
from tuner.kernels.batched.operands import is_aligned, placement
from tuner.kernels.ops import arguments, autocast, operators
from tuner.kernels.ops.arguments import shown
from tuner.kernels.ops.dispatch import epilogue_of, fill_without_products, launch
from tuner.kernels.ops.operators import Planned, define, plan_first
from tuner.kernels.ops.problem import problem_of, product
from tuner.kernels.ops.product_operators import SIGNATURE, ProductOptions, count_flops, dtype_of, options_of
from tuner.launch.call_cache import CallCache, is_tracing, untraced
from tuner.lookup.lookup import resolver
from tuner.problem import Problem

CALL_CACHE = CallCache()


def bmm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | str | None = None,
    precision: str | None = None,
) -> torch.Tensor:
    """Compute activation(a[i] @ b[i] + bias) for every i, with a tuned Triton kernel on a's device and current stream.

    Each product is computed as by `matmul`. The config comes from `tuner.lookup`. Sizes of 0 give the same as in torch.

    Args:
        a: [B, M, K] with any strides, 0 between matrices too: `x.expand(B, M, K)` is not copied.
        b: [B, K, N] with any strides; weights stored [B, N, K] go in as `weights.mT`.
        bias: [N], float32, float16 or bfloat16, the same for every product.
        activation: relu, leaky_relu (slope 0.01), gelu (tanh form), silu; None or "none" for none.
        out: [B, M, N] to write into, any strides without overlap.
        out_dtype: dtype of the results, or its name; torch's choice by default (bfloat16 for fp8, int32 for int8).
        precision: "ieee", "tf32" or "tf32x3" for float32 operands; torch's own setting by default.

    Returns:
        `out`, or a new tensor [B, M, N].

    Raises:
        InputError: an argument is not a dense tensor; shapes, dtypes, devices or options do not fit; or an operand
            requires a gradient.
        KernelError: no installed kernel serves the problem on this device.
    """
    options = (activation, out_dtype, None if precision == "default" else precision)
    alone = out is None and bias is None
    found = CALL_CACHE.run_two(a, b, options) if alone else CALL_CACHE.run((a, b, bias), options, out)
    if found is not None:
        return found
    if is_tracing() and out is not None:
        given = {"bias": bias, "activation": activation, "out": out, "out_dtype": out_dtype, "precision": precision}
        return cast(torch.Tensor, untraced(bmm)(a, b, **given))
    if autocast.is_on(a):
        if out is None and out_dtype is None and options[2] is None:
            a, b, bias = autocast.lowered(a, b, bias)
        with autocast.off(a):
            return bmm(a, b, bias=bias, activation=activation, out=out, out_dtype=out_dtype, precision=precision)
    if out is None and arguments.is_followed():
        return operators.call("bmm", *options_of(*options), a=a, b=b, bias=bias)
    return _checked_call((out, a, b, bias), options)


_Tensors = tuple[torch.Tensor | None, torch.Tensor, torch.Tensor, torch.Tensor | None]
_Options = tuple[str | None, torch.dtype | str | None, str | None]


def _checked_call(given: _Tensors, options: _Options) -> torch.Tensor:
    """Run a call whose arguments must be checked, and store its plan."""
    (out, a, b, bias), (activation, out_dtype, precision) = given, options
    arguments.check_tensors(a=a, b=b, bias=bias, out=out)
    arguments.check_memory(a=a, b=b, bias=bias, out=out)
    a, b, bias = arguments.in_memory(a=a, b=b, bias=bias)
    _check_shapes(a, b)
    arguments.check_kinds(a, b)
    if bias is not None:
        arguments.check_bias(bias, a, b)
    shape = (a.shape[0], a.shape[1], b.shape[2])
    dtype = arguments.out_dtype_of(a, out, out_dtype)
    settled, activation = arguments.precision_of(a, precision), arguments.activation_of(activation)
    arguments.check_epilogue(dtype, bias, activation)
    if out is None:
        out = torch.empty(shape, dtype=dtype, device=a.device)
    else:
        arguments.check_out(out, shape, (a, b, bias))
    arguments.check_gradients(a, b, bias, out)
    if out.numel() == 0:
        return out
    if a.shape[2] == 0:
        fill_without_products(out, bias, activation)
        return out
    epilogue = epilogue_of(has_bias=bias is not None, activation=activation)
    problem = problem_of(_problem, (a, b, out), epilogue, settled)
    sources = resolver()
    recording = launch(Operands(a, b, out, bias, problem, out), problem, a.device)
    float32_setting = settled if a.dtype == torch.float32 and precision is None else None
    CALL_CACHE.remember(given[1:], options, recording, out, sources, out=given[0], precision=float32_setting)
    return out


def _check_shapes(a: torch.Tensor, b: torch.Tensor) -> None:
    for name, tensor, other, expected in (("a", a, b, "[B, M, K]"), ("b", b, a, "[B, K, N]")):
        if tensor.dim() != 3:
            remedy = "for one product use matmul"
            if tensor.dim() == 2 and other.dim() == 3:
                remedy = f"use {name}.expand({other.shape[0]}, -1, -1)"
            elif tensor.dim() > 3:
                remedy = "use bmm(a.flatten(0, -3), b.flatten(0, -3)) and .unflatten(0, ...)"
            raise InputError(f"{name} has shape {shown(tensor)}: expected {expected}; {remedy}")
    if a.shape[0] != b.shape[0]:
        raise InputError(
            f"a {shown(a)} and b {shown(b)} do not fit: as many matrices are expected of both; one for all goes in as "
            "x.expand(B, -1, -1)"
        )
    if a.shape[2] != b.shape[1]:
        raise InputError(
            f"a {shown(a)} and b {shown(b)} do not fit: a's last size must be b's middle one; "
            "weights stored [B, N, K] go in as weights.mT"
        )


def _problem(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, epilogue: str, precision: str) -> Problem:
    return product(
        (a.shape[1], b.shape[2], a.shape[2]),
        (a, b, out),
        (placement(a).transposed, placement(b).transposed),
        # A transposed output is written element by element, even if its address is aligned.
        aligned=is_aligned(a, b, out) and out.stride(2) == 1,
        epilogue=epilogue,
        precision=precision,
        op="bmm",
        extras={"batch": a.shape[0]},
    )


def _run(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, *options: Any) -> torch.Tensor:
    return bmm(a, b, bias=bias, **ProductOptions._make(options)._asdict())


def _shaped(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, *options: Any) -> torch.Tensor:
    """The result's shape and dtype, as a tensor without values; the operands have none either."""
    arguments.check_together(a=a, b=b, bias=bias)
    _check_shapes(a, b)
    arguments.check_dtypes(a, b)
    if bias is not None:
        arguments.check_bias(bias, a, b)
    return a.new_empty((a.shape[0], a.shape[1], b.shape[2]), dtype=dtype_of(a, bias, options))


def _planned(*given: Any) -> Planned:
    return given[:3], given[3:]


define(f"bmm(Tensor a, Tensor b, {SIGNATURE}) -> Tensor", _run, _shaped, count_flops)
plan_first("bmm", CALL_CACHE, _planned)
