"""Derivatives of `matmul` by the same tuned kernels: dA = dC B^T, dB = A^T dC, and for the bias the sum of dC.

If a gradient is needed, a kernel computes the product and adds the bias, and torch applies the activation to the
rounded result, because the activation's gradient needs its input.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tuner.errors import InputError
from tuner.kernels.base.activations import activated
from tuner.kernels.ops import arguments, autocast
from tuner.kernels.ops.matmul_call import CallTensors, MatmulOptions
from tuner.launch import compat
from tuner.problem import dtype as dtypes

Multiply = Callable[..., torch.Tensor]
"""The op `matmul`, which is passed in because its module imports this one."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def transformed(*tensors: torch.Tensor | None) -> bool:
    """Whether torch.func maps over one of the tensors or takes derivatives with respect to it."""
    is_mapped, is_derived = compat.is_batchedtensor, compat.is_gradtrackingtensor
    return any(t is not None and (is_mapped(t) or is_derived(t)) for t in tensors)


def matmul(multiply: Multiply, given: CallTensors, options: MatmulOptions) -> torch.Tensor:
    """Compute `tuner.kernels.matmul`, the op `multiply`, where a tensor requires a gradient.

    Raises:
        InputError: there is no gradient, because of `out`, scales, or 8-bit operands or results.
    """
    activation, out_dtype, *rest = options
    arguments.check_tensors(**given._asdict())
    arguments.check_operands(given.a, given.b, given.bias)
    name = arguments.activation_of(activation)
    dtype = arguments.out_dtype_of(given.a, None, out_dtype) if given.scale_a is None and given.out is None else None
    check(given, dtype)
    for which, other in (("a", given.b), ("b", given.a)):
        if getattr(given, which).is_inference() and (other.requires_grad or transformed(other)):
            raise InputError(
                f"{which} was made under torch.inference_mode() and a tensor requires a gradient: "
                f"use {which}.clone(), or call it under torch.no_grad()"
            )
    product: torch.Tensor = Product.apply(multiply, given.a, given.b, given.bias, dtype, *rest)
    return activated(product, name)


def check(given: CallTensors, out_dtype: torch.dtype | None) -> None:
    """Check that a product has a gradient.

    Raises:
        InputError: it has none.
    """
    found = obstacle(given, out_dtype)
    if found is not None:
        raise InputError(
            f"{found} and a tensor requires a gradient: expected float32, float16 or bfloat16 without scales and out=; "
            "call it under torch.no_grad() or use .detach()"
        )


def obstacle(given: CallTensors, out_dtype: torch.dtype | None) -> str | None:
    """Why a product has no gradient (`out`, scales or 8 bits), or None."""
    if given.out is not None:
        return "out is given"
    if given.scale_a is not None or given.scale_b is not None:
        return "scales are given"
    if given.a.dtype not in _DTYPES:
        return f"a is {dtypes.name_of(given.a.dtype)}"
    if out_dtype is not None and out_dtype not in _DTYPES:
        return f"out_dtype is {dtypes.name_of(out_dtype)}"
    return None


class Product(torch.autograd.Function):  # type: ignore[misc]  # the type checker does not see torch
    """a @ b + bias, with its derivatives, for autograd and for torch.func."""

    @staticmethod
    def forward(  # noqa: D102, PLR0917
        multiply: Multiply,
        a: torch.Tensor,
        b: torch.Tensor,
        bias: torch.Tensor | None,
        out_dtype: torch.dtype | str | None,
        precision: str | None,
        fast_accum: bool | None,
        invariant: bool,
    ) -> torch.Tensor:
        kind: dict[str, Any] = {"precision": precision, "fast_accum": fast_accum, "invariant": invariant}
        return multiply(a, b, bias=bias, out_dtype=out_dtype, **kind)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: D102
        multiply, a, b, bias, _, precision, _, invariant = inputs
        ctx.multiply = functools.partial(multiply, precision=precision, invariant=invariant)
        _, needs_a, needs_b, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
        ctx.save_for_forward(a, b)
        ctx.of_a = a.shape, a.dtype
        ctx.set_materialize_grads(False)  # a product with zeros costs as much as any other
        ctx.bias_dtype, ctx.out_dtype = None if bias is None else bias.dtype, output.dtype

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[torch.Tensor, int]:  # noqa: D102
        _, at_a, *others = in_dims
        multiply, a, b, *rest = given
        if others[:2] == [None, None]:
            return Product.apply(multiply, a.movedim(at_a, 0), b, *rest), 0  # rows of one product
        pairs = [*zip(given, in_dims, strict=True)]
        products = [
            Product.apply(*(each if at is None else each.select(at, index) for each, at in pairs))
            for index in range(info.batch_size)
        ]
        return torch.stack(products), 0

    @staticmethod
    def jvp(ctx: Any, _multiply: None, *tangents: torch.Tensor | None) -> torch.Tensor:  # noqa: D102
        a, b = ctx.saved_tensors
        d_a, d_b, d_bias, *_ = tangents
        multiply = functools.partial(ctx.multiply, out_dtype=ctx.out_dtype)
        parts = [
            *([] if d_a is None else [multiply(d_a, b)]),
            *([] if d_b is None else [multiply(a, d_b)]),
            *([] if d_bias is None else [d_bias.to(ctx.out_dtype).expand(*a.shape[:-1], b.shape[1])]),
        ]
        return functools.reduce(torch.add, parts)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:  # noqa: D102
        if grad is None:
            return (None,) * 8
        a, b = ctx.saved_tensors
        bias_dtype = ctx.bias_dtype if ctx.needs_input_grad[3] else None
        with autocast.off(grad):  # as in the forward pass, whatever is on by now
            return (None, *of_product(grad, a, b, ctx.multiply, ctx.of_a, bias_dtype), *[None] * 4)


def of_product(  # noqa: PLR0917
    grad: torch.Tensor,
    a: torch.Tensor | None,
    b: torch.Tensor | None,
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    of_a: tuple[torch.Size, torch.dtype],
    bias_dtype: torch.dtype | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Gradients of a [..., M, K], b [K, N] and the bias from the product's [..., M, N]; None if not needed.

    That of a takes b, that of b takes a: where one is None, the other's gradient is not needed. `of_a` is a's shape and
    dtype.
    """
    rows = grad.flatten(0, -2)
    d_bias = None if bias_dtype is None else rows.sum(0, dtype=torch.float32).to(bias_dtype)
    if 1 not in rows.stride():
        rows = rows.contiguous()  # the gradient of a sum, for instance, is one expanded number
    rows = rows.to(of_a[1])
    d_a = None if b is None else multiply(rows, b.t()).reshape(of_a[0])
    d_b = None if a is None else multiply(a.flatten(0, -2).t(), rows)
    return d_a, d_b, d_bias
