"""The op `matmul`: a repeated call runs its launch plan; any other is checked, looked up and launched."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tuner.errors import InputError
from tuner.kernels.base.operands import VECTOR_BYTES, Operands, is_aligned, placement, row_alignment
from tuner.kernels.ops import arguments, autocast, gradients, matmul_operator
from tuner.kernels.ops import backend as backends
from tuner.kernels.ops.dispatch import epilogue_of, fill_without_products, flattened, launch
from tuner.kernels.ops.matmul_call import PLAIN, CallTensors, MatmulOptions
from tuner.kernels.ops.operators import Planned, plan_first
from tuner.kernels.ops.problem import problem_of, product
from tuner.launch.call_cache import CallCache, any_m
from tuner.launch.plan import Recording
from tuner.lookup.lookup import resolver
from tuner.problem import Problem
from tuner.problem.gemm_fields import MAX_SIZE

CALL_CACHE = CallCache()


class _ProductOptions(NamedTuple):
    """The options of a call, checked and with defaults filled in."""

    has_bias: bool
    activation: str
    precision: str
    scaling: str
    fast_accum: bool | None
    invariant: bool = False


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
    invariant: bool = False,
) -> torch.Tensor:
    """Compute activation(scaled(a @ b) + bias) with a tuned Triton kernel, on a's device and current stream.

    Sums are float32, for int8 int32. Tile order and pipeline follow Triton's tutorial 03; docs/kernels.md has each
    kernel's sources.

    The config comes from `tuner.lookup`; nothing is measured and nothing written. Sizes of 0 give what torch gives.
    Gradients flow to `a`, `b` and `bias` of float dtypes of 16 and 32 bits, through the same kernels. Under
    torch.autocast these are cast as torch.matmul casts them (docs/ops.md).

    Args:
        a: [..., M, K] with any strides; leading dimensions are flattened into M (copied only where torch must).
        b: [K, N] with any strides; `weight.t()` is as fast as a contiguous matrix.
        bias: [N], float32, float16 or bfloat16.
        activation: relu, leaky_relu (slope 0.01), gelu (tanh form), silu; None or "none" for none.
        out: [..., M, N] to write into, any strides without overlap.
        out_dtype: dtype of the result, or its name; torch's choice by default (bfloat16 for fp8 and scaled int8, int32
            for int8 without scales).
        precision: "ieee", "tf32" or "tf32x3" for float32 operands; torch's own setting by default.
        scale_a, scale_b: float32 factors of fp8 or int8 operands, given together: one element each; [M, 1] and [1, N],
            one for each row of `a` and column of `b`; or, fp8 only, [M, ceil(K/128)] and [ceil(K/128), ceil(N/128)],
            one for each 1x128 block of `a` and 128x128 block of `b` (a weight's scales go in as `scales.t()`). Scales
            of `a` may have its leading dimensions.
        fast_accum: for fp8 operands, as use_fast_accum of torch._scaled_mm: Hopper's tensor cores sum all of K, with
            about 14 bits. By default it is used only if the output's dtype hides the difference (docs/numerics.md).
        backend: "triton" (the default) for these kernels; "auto" for torch's library if the tuned row says that it is
            faster by more than 1%; "vendor" for torch's library only. Gradients and torch.compile always use Triton.
        invariant: whether a row's bits must not depend on how many rows `a` has: only configs that sum in one order for
            every M are used (docs/numerics.md), and never torch's library. Gradients are computed likewise.

    Returns:
        `out`, or a new tensor [..., M, N].

    Raises:
        InputError: an argument is not a dense tensor; shapes, dtypes, devices or options do not fit; or an operand
            requires a gradient although there is none, because of `out`, scales or 8 bits.
        KernelError: no installed kernel serves the problem on this device.
    """
    if precision is not None and precision == "default":
        precision = None
    plain = activation is None and out_dtype is None and precision is None and fast_accum is None and invariant is False
    # A plain tuple equals the `MatmulOptions` of it, and takes less time to make.
    options = PLAIN if plain else (activation, out_dtype, precision, fast_accum, invariant)
    if backend is not None and backend != "triton":
        return _call_by_backend(CallTensors(out, a, b, bias, scale_a, scale_b), options, backend)
    if out is None and bias is None and scale_a is None and scale_b is None:
        result = CALL_CACHE.run_two(a, b, options)
    elif scale_a is None and scale_b is None:
        result = CALL_CACHE.run((a, b, bias), options, out)
    else:
        result = CALL_CACHE.run((a, b, scale_a, scale_b, bias), options, out)
    if result is not None:
        return result
    given, named = CallTensors(out, a, b, bias, scale_a, scale_b), MatmulOptions._make(options)
    if autocast.is_on(a):
        return _autocast_call(given, named, None)
    if arguments.needs_operator(*given):
        return matmul_operator.matmul(matmul, given, named)
    arguments.check_tensors(**given._asdict())
    if arguments.ask_derivatives(*given):
        return gradients.matmul(matmul, given, named)
    return checked_call(given, named)


def _operands(given: CallTensors) -> tuple[torch.Tensor | None, ...]:
    """The operands of a call in the order of its plan's key."""
    _, a, b, bias, scale_a, scale_b = given
    return (a, b, bias) if scale_a is None and scale_b is None else (a, b, scale_a, scale_b, bias)


def _autocast_call(given: CallTensors, options: MatmulOptions, backend: str | None) -> torch.Tensor:
    """Run a call as torch.autocast asks for; as in torch, it leaves alone what has `out` or says the dtype itself."""
    out, a, b, bias, scale_a, scale_b = given
    if out is None and options.out_dtype is None and options.precision is None and scale_a is None and scale_b is None:
        a, b, bias = autocast.lowered(a, b, bias)
    with autocast.off(given.a):
        return matmul(a, b, bias=bias, out=out, scale_a=scale_a, scale_b=scale_b, backend=backend, **options._asdict())


def _call_by_backend(given: CallTensors, given_options: tuple[Any, ...], backend: str) -> torch.Tensor:
    """Run a call that torch's library may serve."""
    out, a, b, bias, scale_a, scale_b = given
    if autocast.is_on(a):
        return _autocast_call(given, MatmulOptions._make(given_options), backend)
    request = None
    try:
        free = not arguments.needs_operator(*given) and not arguments.ask_derivatives(*given)
        if free and out is None and scale_a is None and scale_b is None:
            kind = backends.decision_key(a, b, bias, (given_options, backend))
            is_decided, run = backends.decision(kind)
            if run is not None:
                return run(a, b, bias)
            request = None if is_decided else backends.BackendRequest(backend, kind)
        elif free:
            request = backends.BackendRequest(backend, None)
    except (AttributeError, TypeError, RuntimeError, ValueError):
        request = backends.BackendRequest(backend, None)  # the checks name what is of a wrong type or has no memory
    backends.check(backend)
    options = MatmulOptions._make(given_options)
    if options.invariant:
        raise InputError(
            f"backend {backend!r} may be torch's library, whose order of sums depends on M: leave it out with invariant"
        )
    if request is not None:
        arguments.check_tensors(**given._asdict())
        return checked_call(given, options, request)
    return matmul(a, b, bias=bias, out=out, scale_a=scale_a, scale_b=scale_b, **options._asdict())


def checked_call(
    given: CallTensors,
    options: MatmulOptions,
    request: backends.BackendRequest | None = None,
    remember: Callable[..., None] | None = None,
) -> torch.Tensor:
    """Run a call whose arguments must be checked, and store its plan; `remember` stores it for another op's calls."""
    out, (_, a, b, bias, scale_a, scale_b) = given.out, arguments.in_memory(**given._replace(out=None)._asdict())
    arguments.check_operands(a, b, bias)
    scaling, scale_a, scale_b = arguments.scales_of(a, b, scale_a, scale_b)
    shape = (*a.shape[:-1], b.shape[1])
    activation, out_dtype, precision, fast_accum, invariant = options
    dtype = arguments.out_dtype_of(a, out, out_dtype, scaling)
    uses_accum = arguments.fast_accum_of(a, fast_accum, scaling)
    name, settled = arguments.activation_of(activation), arguments.precision_of(a, precision)
    arguments.check_invariant(settled, invariant)
    kind = _ProductOptions(bias is not None, name, settled, scaling, uses_accum, invariant)
    arguments.check_epilogue(dtype, bias, kind.activation)
    if out is None:
        result = torch.empty(shape, dtype=dtype, device=a.device)
    else:
        arguments.check_out(out, shape, (a, b, bias, scale_a, scale_b))
        result = out
    a2, result2 = a, result
    if a.dim() != 2:
        rows = math.prod(shape[:-1])
        a2 = a.reshape(rows, a.shape[-1])
        # If the output's leading dimensions cannot be flattened in place, a copy below fills it.
        result2 = flattened(result, rows)
    if result2.numel() == 0:
        return result
    if a2.shape[1] == 0:
        fill_without_products(result2, bias, kind.activation)
    else:
        sources = resolver()
        recording = _launch(CallTensors(result2, a2, b, bias, scale_a, scale_b), kind, request)
        if recording is not None and result2.data_ptr() == result.data_ptr():
            float32_setting = kind.precision if a.dtype == torch.float32 and precision is None else None
            remember = remember or functools.partial(CALL_CACHE.remember, _operands(given), options)
            # Scales have rows too. `AnyRowsPlan` leaves out what lies otherwise for each M, such as a transposed A.
            serves_rows = any_m if scale_a is None and request is None else None
            remember(recording, result, sources, out=out, precision=float32_setting, serves_rows=serves_rows)
    if out is not None and result2.data_ptr() != out.data_ptr():
        out.copy_(result2.view(shape))
    return result


def _launch(tensors: CallTensors, kind: _ProductOptions, request: backends.BackendRequest | None) -> Recording | None:
    """Launch the product and return the recorded launches, or None if torch's library computed it."""
    out, a, b, bias, scale_a, scale_b = tensors
    assert out is not None
    problem = _known_problem(a, b, out, kind)
    operands = Operands(a, b, out, bias, problem, out, scale_a, scale_b)
    if request is not None and request.serves(operands):
        return None
    return launch(operands, problem, a.device)


def _known_problem(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, kind: _ProductOptions) -> Problem:
    """`_problem`, cached: where rows lie one after the other, their number decides M alone, unless there is but one."""
    m = a.shape[0] if 1 < a.shape[0] <= MAX_SIZE and a.stride(1) == 1 == out.stride(1) else None
    return problem_of(_problem, (a, b, out), kind, m=m)


def _problem(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, kind: _ProductOptions) -> Problem:
    return product(
        (a.shape[0], b.shape[1], a.shape[1]),
        (a, b, out),
        (placement(a).transposed, placement(b).transposed),
        # A transposed output is written element by element, even if its address is aligned.
        aligned=is_aligned(a, b, out) and out.stride(1) == 1,
        epilogue=epilogue_of(has_bias=kind.has_bias, activation=kind.activation),
        precision=kind.precision,
        scaling=kind.scaling,
        fast_accum=kind.fast_accum,
        b_padded=row_alignment(b) >= VECTOR_BYTES,
        invariant=kind.invariant,
    )


def _planned(*given: Any) -> Planned | None:
    """The operator's call under the options with which the operator calls the op.

    Outside of inference mode the operator's gradient changes torch's state, so that its plans fit no call from here.
    """
    if not torch.is_inference_mode_enabled():
        return None
    tensors, options = given[:5], given[5:]
    # torch leaves the last option out where it is the default.
    return _operands(CallTensors(None, *tensors)), options if len(options) == len(PLAIN) else (*options, False)


matmul_operator.register(matmul)
plan_first("matmul", CALL_CACHE, _planned)
