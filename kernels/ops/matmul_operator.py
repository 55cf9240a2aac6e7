"""`matmul` as torch.compile and torch.export see it: operators `triton_tuner::matmul` and `triton_tuner::matmul_out`.

An eager call runs the op itself, which costs less.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from tuner.kernels.base.activations import activated
from tuner.kernels.ops import arguments, gradients
from tuner.kernels.ops.gradients import Multiply
from tuner.kernels.ops.matmul_call import CallTensors, MatmulOptions
from tuner.kernels.ops.operators import LIBRARY, define, operator
from tuner.launch.call_cache import is_tracing
from tuner.problem import dtype as dtypes

_TENSORS = "Tensor? bias, Tensor? scale_a, Tensor? scale_b"
_OPTIONS = "str activation, ScalarType? out_dtype, str? precision, bool? fast_accum, bool invariant=False"


def matmul(multiply: Multiply, given: CallTensors, options: MatmulOptions) -> torch.Tensor:
    """Compute `tuner.kernels.matmul` while torch traces or transforms it.

    Raises:
        InputError: see the op.
    """
    out, a, b, bias, scale_a, scale_b = given
    activation, out_dtype, *rest = options
    arguments.check_tensors(a=a, b=b, out=out, bias=bias, scale_a=scale_a, scale_b=scale_b)
    if not is_tracing():
        # The operators' shapes are worked out on tensors that are all on meta: only here the devices are known.
        arguments.check_operands(a, b, bias)
        arguments.scales_of(a, b, scale_a, scale_b)
    dtype = dtypes.to_torch(dtypes.canonical(out_dtype)) if isinstance(out_dtype, str) else out_dtype
    name = arguments.activation_of(activation)
    # torch.func.linearize records tangents, which cannot be asked for there.
    is_compiled = torch.compiler.is_compiling()
    has_tangents = not is_compiled and arguments.is_recorded() and arguments.takes_tangents()
    by_func = not is_compiled and (has_tangents or gradients.transformed(a, b, bias))
    if by_func and gradients.obstacle(given, dtype) is None:
        # torch.func refuses gradients of an operator, and assumes that its tangents are zeros.
        return activated(gradients.Product.apply(multiply, a, b, bias, dtype, *rest), name)
    if has_tangents or arguments.ask_derivatives(a, b, out, bias, scale_a, scale_b):
        gradients.check(given, dtype)
        # As in an eager call, the operator computes the product, and torch the activation.
        product = operator("matmul")(a, b, bias, None, None, "none", dtype, *rest)
        return activated(product, name)
    if out is not None:
        operator("matmul_out")(a, b, out, bias, scale_a, scale_b, name, dtype, *rest)
        return out
    return operator("matmul")(a, b, bias, scale_a, scale_b, name, dtype, *rest)


def _run(  # noqa: PLR0917
    multiply: Multiply,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    *options: Any,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    named = MatmulOptions(*options)._asdict()  # torch leaves the last one out where it is the default
    return multiply(a, b, bias=bias, out=out, scale_a=scale_a, scale_b=scale_b, **named)


def _run_out(multiply: Multiply, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *rest: Any) -> None:
    _run(multiply, a, b, *rest, out=out)


def _shaped(  # noqa: PLR0917
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
    activation: str,
    out_dtype: torch.dtype | None,
    precision: str | None,
    fast_accum: bool | None,
    invariant: bool = False,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The result's shape and dtype, as a tensor without values; the operands have none either."""
    arguments.check_together(a=a, b=b, bias=bias, scale_a=scale_a, scale_b=scale_b)
    arguments.check_shapes(a, b)
    arguments.check_dtypes(a, b)
    if bias is not None:
        arguments.check_bias(bias, a, b)
    scaling = arguments.scales_of(a, b, scale_a, scale_b)[0]
    dtype = arguments.out_dtype_of(a, out, out_dtype, scaling)
    arguments.fast_accum_of(a, fast_accum, scaling)
    arguments.check_invariant(arguments.precision_of(a, precision), invariant)
    arguments.check_epilogue(dtype, bias, activation)
    return a.new_empty((*a.shape[:-1], b.shape[1]), dtype=dtype)


def _shaped_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *rest: Any) -> None:
    arguments.check_together(a=a, b=b, out=out)
    arguments.check_out_shape(out, _shaped(a, b, *rest, out=out).shape)


def _count_flops(a: torch.Tensor, b: torch.Tensor, *_: object, **__: object) -> int:
    return 2 * int(a.numel()) * int(b.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001
    a, b, bias, *_, ctx.precision, _, ctx.invariant = inputs
    needs_a, needs_b, *_ = ctx.needs_input_grad
    ctx.save_for_backward(a if needs_b else None, b if needs_a else None)
    ctx.of_a = a.shape, a.dtype
    ctx.bias_dtype = None if bias is None else bias.dtype


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    a, b = ctx.saved_tensors
    bias_dtype = ctx.bias_dtype if ctx.needs_input_grad[2] else None

    def multiply(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        # Call the operator instead of the op, because traced gradients have no values either.
        kind = (ctx.precision, None, ctx.invariant)
        return operator("matmul")(first, second, None, None, None, "none", None, *kind)

    return (*gradients.of_product(grad, a, b, multiply, ctx.of_a, bias_dtype), *[None] * 7)


def register(multiply: Multiply) -> None:
    """Define both operators, which run the op `matmul`: it is passed in because its module imports this one."""
    rest = f"{_TENSORS}, {_OPTIONS}"
    define(f"matmul(Tensor a, Tensor b, {rest}) -> Tensor", functools.partial(_run, multiply), _shaped, _count_flops)
    run_out = functools.partial(_run_out, multiply)
    define(f"matmul_out(Tensor a, Tensor b, Tensor(a!) out, {rest}) -> ()", run_out, _shaped_out, _count_flops)
    torch.library.register_autograd("triton_tuner::matmul", _backward, setup_context=_keep, lib=LIBRARY)
