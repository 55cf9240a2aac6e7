"""The op `matmul`: a call seen before runs its plan; any other is checked, looked up and launched."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from tuner.kernels.base.operands import VECTOR_BYTES, Operands, is_aligned, placement, row_alignment
from tuner.kernels.ops import backend as backends
from tuner.kernels.ops import gradients, torch_library
from tuner.kernels.ops.arguments import (
    activation_of,
    ask_derivatives,
    check_epilogue,
    check_operands,
    check_out,
    check_tensors,
    fast_accum_of,
    has_memory,
    out_dtype_of,
    precision_of,
    scales_of,
)
from tuner.kernels.ops.dispatch import epilogue_of, fill_without_products, flattened, launch
from tuner.kernels.ops.problem import problem_of, product
from tuner.launch.call_cache import CallCache
from tuner.launch.plan import Recording
from tuner.lookup.lookup import resolver
from tuner.problem import Problem

_is_compiling = torch.compiler.is_compiling
_Options = tuple[str | None, torch.dtype | str | None, str | None, bool | None]
"""activation, out_dtype, precision and fast_accum as `matmul` takes them; torch's own precision is None."""
_PLAIN: _Options = (None, None, None, None)
"""Those of most calls: a tuple that is always the same one is the sooner found."""
CALL_CACHE = CallCache()


class _Tensors(NamedTuple):
    """A call's tensors."""

    out: torch.Tensor | None
    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None
    scale_a: torch.Tensor | None
    scale_b: torch.Tensor | None


class _ProductOptions(NamedTuple):
    """What a call asks for besides its tensors."""

    has_bias: bool
    activation: str
    precision: str
    scaling: str
    fast_accum: bool | None


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | str | None = None,
    precision: str | None = None,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
    fast_accum: bool | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    """activation(scaled(a @ b) + bias) by a tuned Triton kernel, on a's device and current stream.

    Sums are float32, those of int8 int32.

    The config comes from `tuner.lookup`; nothing is measured and nothing written. Sizes of 0 give what torch gives.
    Gradients flow to `a`, `b` and `bias` of float dtypes of 16 and 32 bits, through the same kernels.

    Args:
        a: [..., M, K] with any strides; leading dimensions are flattened into M (copied only where torch must).
        b: [K, N] with any strides; a `weight.t()` is as good as a contiguous matrix.
        bias: [N], float32, float16 or bfloat16.
        activation: relu, leaky_relu (slope 0.01), gelu (tanh form), silu; None or "none" for none.
        out: [..., M, N] to write into, any strides without overlap.
        out_dtype: of the result, or its name; torch's choice unless given (bfloat16 for fp8 and scaled int8, int32 for
            int8 without scales).
        precision: of float32 operands, "ieee", "tf32" or "tf32x3"; torch's own setting unless given.
        scale_a, scale_b: float32 factors of fp8 or int8 operands, given together: one element each; [M, 1] and [1, N],
            one for each row of `a` and column of `b`; or, fp8 only, [M, ceil(K/128)] and [ceil(K/128), ceil(N/128)],
            one for each 1x128 block of `a` and 128x128 block of `b` (a weight's scales go in as `scales.t()`). Those of
            `a` may have its leading dimensions.
        fast_accum: of fp8 operands, torch._scaled_mm's use_fast_accum: Hopper's tensor cores sum all of K, in about 14
            bits. Unless given, only where the output's dtype does not show it (docs/numerics.md).
        backend: "triton", these kernels, unless given; "auto", torch's own library where the tuned row says that it is
            faster by more than 1%; "vendor", torch's alone. Gradients and torch.compile's programs are always Triton's.

    Returns:
        `out`, or a new tensor [..., M, N].

    Raises:
        InputError: arguments that are no dense tensors, shapes, dtypes, devices or options that do not fit, or operands
            that ask for a gradient which there is not: with `out`, scales, or 8 bits.
        KernelError: no installed kernel serves the problem on this device.
    """
    if precision is not None and precision == "default":
        precision = None
    plain = activation is None and out_dtype is None and precision is None and fast_accum is None
    options = _PLAIN if plain else (activation, out_dtype, precision, fast_accum)
    if backend is not None and backend != "triton":
        return _call_by_backend(_Tensors(out, a, b, bias, scale_a, scale_b), options, backend)
    if out is None and bias is None and scale_a is None and scale_b is None:
        result = CALL_CACHE.run_two(a, b, options)
    elif scale_a is None and scale_b is None:
        result = CALL_CACHE.run((a, b, bias), options, out)
    else:
        result = CALL_CACHE.run((a, b, scale_a, scale_b, bias), options, out)
    if result is not None:
        return result
    given = _Tensors(out, a, b, bias, scale_a, scale_b)
    if _is_traced(given):
        return torch_library.matmul(matmul, a, b, out, bias, scale_a, scale_b, *options)
    check_tensors(**given._asdict())
    if ask_derivatives(*given):
        return gradients.matmul(matmul, given, *options)
    return _checked_call(given, options)


def _operands(given: _Tensors) -> tuple[torch.Tensor | None, ...]:
    """What a call reads, as `CallCache` has it; one scale without the other is of no plan."""
    _, a, b, bias, scale_a, scale_b = given
    return (a, b, bias) if scale_a is None and scale_b is None else (a, b, scale_a, scale_b, bias)


def _is_traced(given: _Tensors) -> bool:
    """Whether torch is to see an operator: it compiles, or a tensor is a trace's, torch.func's or a wrapper."""
    return _is_compiling() or any(isinstance(each, torch.Tensor) and not has_memory(each) for each in given)


def _call_by_backend(given: _Tensors, options: _Options, backend: str) -> torch.Tensor:
    """A call that torch may serve."""
    out, a, b, bias, scale_a, scale_b = given
    asked = None
    try:
        free = not _is_traced(given) and not ask_derivatives(*given)
        if free and out is None and scale_a is None and scale_b is None:
            kind = backends.decision_key(a, b, bias, (options, backend))
            is_decided, run = backends.decision(kind)
            if run is not None:
                return run(a, b, bias)
            asked = None if is_decided else backends.BackendRequest(backend, kind)
        elif free:
            asked = backends.BackendRequest(backend, None)
    except (AttributeError, TypeError, RuntimeError) as e:
        backends.check(backend)
        check_tensors(**given._asdict())
        if not isinstance(e, TypeError):
            raise
        asked = backends.BackendRequest(backend, None)  # an option that cannot be hashed, which is then named
    backends.check(backend)
    if asked is not None:
        check_tensors(**given._asdict())
        return _checked_call(given, options, asked)
    named: dict[str, Any] = dict(zip(("activation", "out_dtype", "precision", "fast_accum"), options, strict=True))
    return matmul(a, b, bias=bias, out=out, scale_a=scale_a, scale_b=scale_b, **named)


def _checked_call(given: _Tensors, options: _Options, asked: backends.BackendRequest | None = None) -> torch.Tensor:
    """A call whose every argument is looked at; its plan is kept."""
    activation, out_dtype, precision, fast_accum = options
    # A kernel reads memory, where what torch only marks as negated (x.conj().imag) has the other sign.
    a, b, out = given.a.resolve_neg(), given.b.resolve_neg(), given.out
    bias = None if given.bias is None else given.bias.resolve_neg()
    check_operands(a, b, bias)
    scaling, scale_a, scale_b = scales_of(a, b, given.scale_a, given.scale_b)
    shape = (*a.shape[:-1], b.shape[1])
    dtype = out_dtype_of(a, out, out_dtype, scaling)
    kind = _ProductOptions(
        bias is not None,
        activation_of(activation),
        precision_of(a, precision),
        scaling,
        fast_accum_of(a, fast_accum, scaling),
    )
    check_epilogue(dtype, bias, kind.activation)
    if out is None:
        result = torch.empty(shape, dtype=dtype, device=a.device)
    else:
        check_out(out, shape, (a, b, bias, scale_a, scale_b))
        result = out
    rows = math.prod(shape[:-1])
    a2, result2 = a, result
    if a.dim() != 2:
        a2 = a.reshape(rows, a.shape[-1])
        # An output whose leading dimensions cannot be flattened in place is filled by a copy below.
        result2 = flattened(result, rows)
    if result2.numel() == 0:
        return result
    if a2.shape[1] == 0:
        fill_without_products(result2, bias, kind.activation)
    else:
        sources = resolver()
        seen = _launch(_Tensors(result2, a2, b, bias, scale_a, scale_b), kind, asked)
        if seen is not None and result2.data_ptr() == result.data_ptr():
            by_torch = kind.precision if a.dtype == torch.float32 and precision is None else None
            CALL_CACHE.remember(_operands(given), options, seen, result, sources, out=out, precision=by_torch)
    if out is not None and result2.data_ptr() != out.data_ptr():
        out.copy_(result2.view(shape))
    return result


def _launch(tensors: _Tensors, kind: _ProductOptions, asked: backends.BackendRequest | None) -> Recording | None:
    """What was launched; None where torch served."""
    out, a, b, bias, scale_a, scale_b = tensors
    assert out is not None
    problem = problem_of(_problem, (a, b, out), kind)
    operands = Operands(a, b, out, bias, problem, out, scale_a, scale_b)
    if asked is not None and asked.serves(operands):
        return None
    return launch(operands, problem, a.device)


def _problem(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, kind: _ProductOptions) -> Problem:
    return product(
        (a.shape[0], b.shape[1], a.shape[1]),
        (a, b, out),
        (placement(a).transposed, placement(b).transposed),
        # A transposed output is written element by element, whatever its address.
        aligned=is_aligned(a, b, out) and out.stride(1) == 1,
        epilogue=epilogue_of(has_bias=kind.has_bias, activation=kind.activation),
        precision=kind.precision,
        scaling=kind.scaling,
        fast_accum=kind.fast_accum,
        b_padded=row_alignment(b) >= VECTOR_BYTES,
    )


torch_library.register(matmul)
