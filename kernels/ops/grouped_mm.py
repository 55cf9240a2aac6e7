"""The op `grouped_mm`: products of different sizes in one launch. A repeated call runs its launch plan.

torch.compile and torch.export see a call with `offs` and without `out` as the operator `triton_tuner::grouped_mm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tuner.errors import InputError
from tuner.kernels.base.operands import is_aligned, placement
from tuner.kernels.batched import operands as batched_operands
from tuner.kernels.grouped.operands import GroupedOperands
from tuner.kernels.ops import arguments, operators
from tuner.kernels.ops.arguments import shown
from tuner.kernels.ops.dispatch import epilogue_of, launch
from tuner.kernels.ops.grouped_lists import listed_mm
from tuner.kernels.ops.operators import Planned, define, plan_first
from tuner.kernels.ops.problem import problem_of, product
from tuner.kernels.ops.product_operators import SIGNATURE, ProductOptions, count_flops, dtype_of, options_of
from tuner.launch.call_cache import CallCache, is_tracing, untraced
from tuner.lookup.lookup import resolver
from tuner.problem import Problem
from tuner.problem import dtype as dtypes

CALL_CACHE = CallCache()
"""The plans of calls with `offs`. Calls with lists are checked and looked up each time."""


def grouped_mm(
    a: torch.Tensor | Sequence[torch.Tensor],
    b: torch.Tensor | Sequence[torch.Tensor],
    offs: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out: torch.Tensor | Sequence[torch.Tensor] | None = None,
    out_dtype: torch.dtype | str | None = None,
    precision: str | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Compute products of different sizes in one launch of a tuned Triton kernel, on the operands' current stream.

    With `offs`, as in torch's grouped_mm, rows offs[g-1] to offs[g] of `a` are multiplied by b[g]. `offs` stays on the
    device: nothing waits for it, and a captured CUDA graph replays with its current values. Rows from offs[-1] on are
    not written. Without `offs`, `a` and `b` are lists of equal length, and the products are a[i] @ b[i].

    Each product is computed as by `matmul`; programs take tile after tile as in Triton's tutorial 08. The config comes
    from `tuner.lookup`.

    Args:
        a: [M, K] with any strides; or a list of [M_i, K_i].
        b: [G, K, N] with any strides, weights stored [G, N, K] go in as `weights.mT`; or a list of [K_i, N_i].
        offs: int32 [G], in ascending order, one past each group's last row.
        bias: [G, N], contiguous, float32, float16 or bfloat16; not with lists.
        activation: relu, leaky_relu (slope 0.01), gelu (tanh form), silu; None or "none" for none.
        out: [M, N] to write into, or a list of [M_i, N_i]; any strides without overlap.
        out_dtype: dtype of the results, or its name; torch's choice by default (bfloat16 for fp8, int32 for int8).
        precision: "ieee", "tf32" or "tf32x3" for float32 operands; torch's own setting by default.

    Returns:
        `out`, or a new tensor [M, N] or list.

    Raises:
        InputError: an argument is not a dense tensor; shapes, dtypes, devices or options do not fit; or an operand
            requires a gradient.
        KernelError: no installed kernel serves the problem on this device.
    """
    if is_tracing() and (out is not None or offs is None):
        given = {"bias": bias, "activation": activation, "out": out, "out_dtype": out_dtype, "precision": precision}
        return untraced(grouped_mm)(a, b, offs, **given)
    if offs is None and isinstance(a, (list, tuple)):
        if bias is not None:
            raise InputError("bias is given and a is a list: expected none; add it to the results, or use offs=")
        return listed_mm(a, b, activation=activation, out=out, out_dtype=out_dtype, precision=precision)
    options = (activation, out_dtype, None if precision == "default" else precision)
    found = CALL_CACHE.run((a, b, offs, bias), options, out)
    if found is not None:
        return found
    are_tensors = all(isinstance(each, torch.Tensor) for each in (a, b, offs))
    if out is None and are_tensors and arguments.is_followed():
        return operators.call("grouped_mm", *options_of(*options), a=a, b=b, offs=offs, bias=bias)
    return _checked_call((out, a, b, offs, bias), options)


_Options = tuple[str | None, torch.dtype | str | None, str | None]


def _checked_call(given: tuple[Any, ...], options: _Options) -> torch.Tensor:
    """Run a call with `offs` whose arguments must be checked, and store its plan."""
    (out, a, b, offs, bias), (activation, out_dtype, precision) = given, options
    if isinstance(a, (list, tuple)):
        raise InputError("offs is given and a is a list: expected no offs with lists; leave offs away")
    if isinstance(b, (list, tuple)):
        raise InputError("b is a list and a is not: expected [G, K, N] with offs; use torch.stack(b), or two lists")
    arguments.check_tensors(a=a, b=b, offs=offs, bias=bias, out=out)
    assert isinstance(a, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    assert out is None or isinstance(out, torch.Tensor)
    arguments.check_memory(a=a, b=b, offs=offs, bias=bias, out=out)
    a, b, bias, offs = arguments.in_memory(a=a, b=b, bias=bias, offs=offs)
    arguments.check_kinds(a, b)
    offs = _check_shapes(a, b, offs)
    if bias is not None:
        _check_bias(bias, a, b)
    dtype = arguments.out_dtype_of(a, out, out_dtype)
    settled, activation = arguments.precision_of(a, precision), arguments.activation_of(activation)
    arguments.check_epilogue(dtype, bias, activation)
    if out is None:
        out = torch.empty(a.shape[0], b.shape[2], dtype=dtype, device=a.device)
    else:
        arguments.check_out(out, (a.shape[0], b.shape[2]), (a, b, bias, offs))
    arguments.check_gradients(a, b, bias, out)
    if out.numel() and b.shape[0]:
        epilogue = epilogue_of(has_bias=bias is not None, activation=activation)
        problem = problem_of(_problem, (a, b, out), epilogue, settled)
        sources = resolver()
        recording = launch(GroupedOperands(a, b, out, bias, offs, problem, out), problem, a.device)
        float32_setting = settled if a.dtype == torch.float32 and precision is None else None
        CALL_CACHE.remember(given[1:], options, recording, out, sources, out=given[0], precision=float32_setting)
    return out


def _problem(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, epilogue: str, precision: str) -> Problem:
    return product(
        # If K is 0, the problem is that of K = 1.
        (a.shape[0], b.shape[2], max(1, a.shape[1])),
        (a, b, out),
        (placement(a).transposed, batched_operands.placement(b).transposed),
        # A transposed output is written element by element, even if its address is aligned.
        aligned=is_aligned(a, out) and batched_operands.is_aligned(b) and out.stride(1) == 1 and a.shape[1] > 0,
        epilogue=epilogue,
        precision=precision,
        op="grouped_mm",
        extras={"groups": b.shape[0]},
    )


def _check_shapes(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> torch.Tensor:
    if a.dim() != 2 or b.dim() != 3:
        raise InputError(
            f"a has shape {shown(a)} and b {shown(b)}: expected [M, K] and [G, K, N], or two lists of matrices; "
            "for [G, M, K] use bmm"
        )
    if a.shape[1] != b.shape[1]:
        raise InputError(
            f"a {shown(a)} and b {shown(b)} do not fit: a's last size must be b's middle one; "
            "weights stored [G, N, K] go in as weights.mT"
        )
    if offs is None:
        raise InputError(f"offs is None: expected int32 [{b.shape[0]}], one beyond each group's last row")
    if offs.shape != b.shape[:1]:
        raise InputError(f"offs has shape {shown(offs)}: expected [{b.shape[0]}], one end for each matrix of b")
    if offs.dtype != torch.int32:
        raise InputError(f"offs is {dtypes.name_of(offs.dtype)}: expected int32; use offs.int()")
    if offs.device != a.device:
        raise InputError(f"offs is on {offs.device} and a on {a.device}: expected one device; use offs.to(a.device)")
    return offs.contiguous()


def _check_bias(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    expected = [b.shape[0], b.shape[2]]
    if list(bias.shape) != expected:
        raise InputError(f"bias has shape {shown(bias)}: expected {expected}, one row for each matrix of b")
    arguments.check_bias_kind(bias, a)
    if not bias.is_contiguous():
        raise InputError("bias is not contiguous: expected rows one behind the other; use bias.contiguous()")


def _run(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, bias: torch.Tensor | None, *options: Any) -> Any:
    return grouped_mm(a, b, offs, bias=bias, **ProductOptions._make(options)._asdict())


def _shaped(
    a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor, bias: torch.Tensor | None, *options: Any
) -> torch.Tensor:
    """The result's shape and dtype, as a tensor without values; the operands have none either."""
    arguments.check_together(a=a, b=b, offs=offs, bias=bias)
    arguments.check_dtypes(a, b)
    _check_shapes(a, b, offs)
    if bias is not None:
        _check_bias(bias, a, b)
    return a.new_empty((a.shape[0], b.shape[2]), dtype=dtype_of(a, bias, options))


def _planned(*given: Any) -> Planned:
    return given[:4], given[4:]


define(f"grouped_mm(Tensor a, Tensor b, Tensor offs, {SIGNATURE}) -> Tensor", _run, _shaped, count_flops)
plan_first("grouped_mm", CALL_CACHE, _planned)
