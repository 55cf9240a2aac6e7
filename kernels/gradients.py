"""Gradients of `matmul`, by the same tuned kernels: dA = dC B^T, dB = A^T dC, and dC summed for the bias.

A product that asks for gradients is multiplied and biased by a kernel; its activation is torch's own, on the rounded
product, for its gradient needs the values before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tuner import dtype as dtypes
from tuner.errors import InputError
from tuner.kernels.arguments import activation_of, check_operands, check_tensors, out_dtype_of

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda values: values,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "gelu": lambda values: F.gelu(values, approximate="tanh"),
    "silu": F.silu,
}


def asked(*tensors: torch.Tensor | None) -> bool:
    """Whether one of the tensors asks for a gradient."""
    for tensor in tensors:  # noqa: SIM110  half the time of `any` at each call
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def matmul(
    given: Any,
    activation: str | None,
    out_dtype: torch.dtype | str | None,
    precision: str | None,
    fast_accum: bool | None,
) -> torch.Tensor:
    """`tuner.kernels.matmul` of tensors one of which asks for a gradient.

    Args:
        given: a, b, out, bias, scale_a, scale_b by name.
        activation, out_dtype, precision, fast_accum: as `matmul` takes them.

    Raises:
        InputError: there is no such gradient: with `out`, with scales, of operands or results of 8 bits.
    """
    check_tensors(**given._asdict())
    check_operands(given.a, given.b, given.bias)
    name = activation_of(activation)
    dtype = out_dtype_of(given.a, None, out_dtype) if given.scale_a is None and given.out is None else None
    check(given.a, given.out, given.scale_a, given.scale_b, dtype)
    product: torch.Tensor = Product.apply(given.a, given.b, given.bias, dtype, precision, fast_accum)
    return activated(product, name)


def check(
    a: torch.Tensor,
    out: torch.Tensor | None,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> None:
    """There is a gradient of such a product: no `out`, no scales, no 8 bits."""
    if out is not None:
        found = "out is given"
    elif scale_a is not None or scale_b is not None:
        found = "scales are given"
    elif a.dtype not in _DTYPES:
        found = f"a is {dtypes.name_of(a.dtype)}"
    elif out_dtype is not None and out_dtype not in _DTYPES:
        found = f"out_dtype is {dtypes.name_of(out_dtype)}"
    else:
        return
    raise InputError(
        f"{found} and a tensor requires a gradient: expected float32, float16 or bfloat16 without scales and out=; "
        "call it under torch.no_grad() or use .detach()"
    )


def activated(product: torch.Tensor, activation: str) -> torch.Tensor:
    """The activation, by torch."""
    return _ACTIVATIONS[activation](product)


class Product(torch.autograd.Function):
    """a @ b + bias, with its gradients."""

    @staticmethod
    def forward(  # noqa: D102, PLR0917
        a: torch.Tensor,
        b: torch.Tensor,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype | str | None,
        precision: str | None,
        fast_accum: bool | None,
    ) -> torch.Tensor:
        return _op()(a, b, bias=bias, out_dtype=out_dtype, precision=precision, fast_accum=fast_accum)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG004, D102
        a, b, bias, _, ctx.precision, _ = inputs
        ctx.save_for_backward(a, b)
        ctx.bias_dtype = None if bias is None else bias.dtype

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        a, b = ctx.saved_tensors
        needs_a, needs_b, needs_bias, *_ = ctx.needs_input_grad
        bias_dtype = ctx.bias_dtype if needs_bias else None
        multiply = functools.partial(_op(), precision=ctx.precision)
        return (*of_product(grad, a, b, multiply, (needs_a, needs_b), bias_dtype), None, None, None)


def of_product(  # noqa: PLR0917
    grad: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    needed: tuple[bool, bool],
    bias_dtype: torch.dtype | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Gradients of a [..., M, K], b [K, N] and the bias, from the product's [..., M, N]; None where not needed."""
    rows = grad.reshape(-1, grad.shape[-1])
    d_bias = None if bias_dtype is None else rows.sum(0, dtype=torch.float32).to(bias_dtype)
    if 1 not in rows.stride():
        rows = rows.contiguous()  # the gradient of a sum, for instance, is one number for all
    rows = rows.to(a.dtype)
    d_a = multiply(rows, b.t()).reshape(a.shape) if needed[0] else None
    d_b = multiply(a.reshape(-1, a.shape[-1]).t(), rows) if needed[1] else None
    return d_a, d_b, d_bias


def _op() -> Any:
    from tuner.kernels import matmul as op  # which imports this module

    return op
