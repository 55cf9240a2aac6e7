"""Ops as operators `triton_tuner::NAME` of torch: what torch.compile, torch.export and torch.func record of a call.

Programs of torch.compile and torch.export call operators from Python, and torch's dispatch takes as long as a launch.
So an operator runs the plan of an equal earlier call first. A plan serves only what no mode of torch sees and what
gradients, autocast and transforms leave alone (call_cache.py): for such a call the dispatcher does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from tuner.kernels.ops import arguments, autocast
from tuner.launch import compat
from tuner.launch.call_cache import CallCache

Planned = tuple[tuple[torch.Tensor | None, ...], tuple[Hashable, ...]]
"""The operands and the options under which a call's plan is stored."""
_NO_OPERANDS = (AttributeError, IndexError, RuntimeError, TypeError)
"""Raised where an argument is missing or of a wrong kind; torch says which."""

LIBRARY = torch.library.Library("triton_tuner", "DEF")
_flops: dict[str, Callable[..., int]] = {}


def define(
    signature: str,
    run: Callable[..., Any],
    shaped: Callable[..., Any],
    count_flops: Callable[..., int] | None = None,
) -> None:
    """Define an operator of triton-tuner's.

    Args:
        signature: Its name, arguments and result in torch's words: "linear(Tensor x, Tensor weight) -> Tensor".
        run: What it does, on every device, without gradients and autocast: torch has recorded these by then. Its first
            argument is a tensor.
        shaped: Takes the same arguments without values and returns a result without values. It checks what it can.
        count_flops: Takes the same arguments, and the result as `out_val`; returns the floating-point operations of its
            products; None of one that has none.
    """
    name = signature.partition("(")[0]
    LIBRARY.define(signature)
    LIBRARY.impl(name, _alone(run), "CompositeExplicitAutograd")
    # Not by `register_fake`, which looks for the caller's source in every module that was imported.
    LIBRARY.impl(name, shaped, "Meta")
    if count_flops is not None:
        _flops[name] = count_flops


def _alone(run: Callable[..., Any]) -> Callable[..., Any]:
    """Run it without gradients and autocast."""

    def run_alone(first: torch.Tensor, *others: Any) -> Any:
        if not (torch.is_grad_enabled() or autocast.is_on(first)):
            return run(first, *others)  # the blocks below take as long as some launches
        with torch.no_grad(), autocast.off(first):
            return run(first, *others)

    return run_alone


def operator(name: str) -> Any:
    """One of triton-tuner's operators, for an eager call that modes of torch may see, or one that is traced."""
    if not torch.compiler.is_compiling():
        _tell_counters()
    return getattr(torch.ops.triton_tuner, name)


def call(name: str, *options: Any, **tensors: torch.Tensor | None) -> torch.Tensor:
    """Call an operator that has no gradient, by its tensors in its own order and by what else it takes.

    Raises:
        InputError: an argument is not a dense tensor, or requires a gradient.
    """
    arguments.check_tensors(**tensors)
    arguments.check_gradients(*tensors.values())
    result: torch.Tensor = operator(name)(*tensors.values(), *options)
    return result


def _tell_counters() -> None:
    """Tell each FlopCounterMode that torch dispatches to how to count our operators, but for what its user told it.

    A counter copies torch's formulas as it is made, and importing the module that holds these imports parts of torch's
    compiler: so counters are told by the calls that they see.
    """
    for mode in compat.dispatch_modes():
        registry = getattr(getattr(mode, "counter", None), "flop_registry", None)
        if isinstance(registry, dict):
            for name, count in _flops.items():
                registry.setdefault(getattr(torch.ops.triton_tuner, name), count)


def plan_first(name: str, cache: CallCache, planned: Callable[..., Planned | None]) -> None:
    """Let calls of an operator of triton-tuner's ask for a plan first; to be called where the operator is defined.

    It changes the hash of torch's object for the operator.

    Args:
        name: The operator's in `torch.ops.triton_tuner`.
        cache: The plans of its calls.
        planned: Takes the operator's arguments by position; None for a call that has no plan.
    """
    overload = getattr(torch.ops.triton_tuner, name).default
    dispatched = getattr(overload, compat.OVERLOAD_CALLS, None)
    if dispatched is None:
        return
    count_dispatch_modes, count_function_modes = compat.count_dispatch_modes, compat.count_function_modes

    def planned_or_dispatched(*given: Any, **named: Any) -> Any:
        if has_modes := count_dispatch_modes():
            _tell_counters()
        if named or has_modes or count_function_modes():
            return dispatched(*given, **named)
        try:
            asked = planned(*given)
        except _NO_OPERANDS:
            asked = None
        found = None if asked is None else cache.run(*asked)
        return dispatched(*given) if found is None else found

    setattr(overload, compat.OVERLOAD_CALLS, planned_or_dispatched)
