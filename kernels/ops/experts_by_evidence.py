"""A block of experts by `fused_experts` where tables say that it is no slower, for `tuner.models.accelerate`.

What is traced or observed gets one operator, `triton_tuner::experts_by_evidence`, which chooses at each run.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from tuner.kernels.experts import operands as experts_operands
from tuner.kernels.ops import arguments, autocast, dispatch, torch_fallback
from tuner.kernels.ops import fused_experts as op
from tuner.kernels.ops.linear import DTYPES, are_plain
from tuner.kernels.ops.operators import Planned, define, operator, plan_first
from tuner.launch.call_cache import CallCache, is_tracing
from tuner.lookup import evidence, lookup
from tuner.problem import Problem
from tuner.problem import dtype as dtypes

CALL_CACHE = CallCache()


def experts_by_evidence(  # noqa: PLR0917
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    experts: torch.Tensor,
    shares: torch.Tensor,
    activation: str,
    is_auto: bool,
) -> torch.Tensor | None:
    """Compute `fused_experts`, or None where the caller is to, in its own way.

    That is what tables say is slower if `is_auto`, what needs a gradient or is cast by autocast, and what the kernels
    do not take.

    Raises:
        Exception: What `fused_experts` raises where no kernel could be launched.
    """
    given, options = (x, gate_up, down, experts, shares), (activation, is_auto)
    # A plan serves only what needs neither a gradient nor autocast, and what nobody traces.
    found = None if is_tracing() else CALL_CACHE.run(given, options)
    if found is not None:
        return found
    if not (are_plain(given) and _fit(*given)) or autocast.is_on(x) or arguments.ask_derivatives(*given):
        return None
    if arguments.is_followed():
        result: torch.Tensor = operator("experts_by_evidence")(*given, activation, is_auto)
        return result
    if not arguments.has_kernels(x.device) or (is_auto and not _is_faster_at(x, down, experts, activation)):
        return None
    return op.checked_call(given, activation, cache=CALL_CACHE, options=options)


def _fit(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, experts: torch.Tensor, shares: torch.Tensor
) -> bool:
    """Whether `fused_experts` takes these tensors; a block's own forward says what is wrong with others."""
    shapes = (
        x.dim() == experts.dim() == 2 and gate_up.dim() == down.dim() == 3,
        x.shape[1:] == gate_up.shape[2:] == down.shape[1:2],
        gate_up.shape[0] == down.shape[0] and gate_up.shape[1] == 2 * down.shape[-1],
        experts.shape == shares.shape and experts.shape[0] == x.shape[0] and 0 < experts.shape[-1] <= down.shape[0],
    )
    kinds = (
        x.dtype == gate_up.dtype == down.dtype and x.dtype in DTYPES,
        experts.dtype in (torch.int64, torch.int32) and shares.dtype in (x.dtype, torch.float32),
        all(each.device == x.device for each in (experts, shares, gate_up, down)),
    )
    return all(shapes) and all(kinds) and all(each.is_contiguous() for each in (x, gate_up, down))


def _is_faster_at(x: torch.Tensor, down: torch.Tensor, experts: torch.Tensor, activation: str) -> bool:
    sizes = (x.shape[0], down.shape[2], down.shape[1], down.shape[0], experts.shape[1])
    return _is_faster(lookup.resolver(), sizes, x.dtype, activation, x.device.index)


@functools.lru_cache(maxsize=8192)
def _is_faster(
    _of: object, sizes: tuple[int, int, int, int, int], dtype: torch.dtype, activation: str, index: int | None
) -> bool:
    """Whether a table says that the kernels are no slower than torch; asked once while the same tables are named."""
    return sizes[0] > 0 and evidence.beats_vendor(problem(sizes, dtype, activation), dispatch.device_of(index))


lookup.on_change(_is_faster.cache_clear)


def problem(sizes: tuple[int, int, int, int, int], dtype: torch.dtype, activation: str) -> Problem:
    """The problem of a block whose tensors are contiguous, by M, N, K, the number of experts and top_k."""
    *shape, experts, top_k = sizes
    extras, name = {"groups": experts, "top_k": top_k}, dtypes.name_of(dtype)
    return Problem(*shape, dtype=name, layout="nt", op="fused_experts", epilogue=activation, extras=extras)


def _run(*given: Any) -> torch.Tensor:
    """The operator's own call."""
    found = experts_by_evidence(*given)
    if found is not None:
        return found
    x, gate_up, down, experts, shares, activation, _ = given
    out = torch.empty_like(x)
    if len(x):
        operands = op.operands_of((x, gate_up, down, experts, shares), activation, out)
        torch_fallback.compute(operands, experts_operands.vendor)
    return out


def _planned(*given: Any) -> Planned:
    return given[:5], given[5:]


def _shaped(x: torch.Tensor, *others: object) -> torch.Tensor:
    """The result's shape and dtype, as a tensor without values; the operands have none either."""
    named = dict(zip(("gate_up", "down", "experts", "shares"), others, strict=False))
    arguments.check_together(x=x, **named)
    return x.new_empty(x.shape)


_SIGNATURE = f"experts_by_evidence({op.TENSORS}, str activation, bool is_auto) -> Tensor"
define(_SIGNATURE, _run, _shaped, op.count_flops)
plan_first("experts_by_evidence", CALL_CACHE, _planned)
