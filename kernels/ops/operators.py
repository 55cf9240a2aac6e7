"""Ops as operators `triton_tuner::NAME` of torch: what torch.compile, torch.export and torch.func record of a call.

Programs of torch.compile and torch.export call operators from Python, and torch's dispatch takes as long as a launch.
So an operator runs the plan of an equal earlier call first. A plan serves only what no mode of torch sees and what
gradients, autocast and transforms leave alone (call_cache.py): for such a call the dispatcher does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from tuner.launch import compat
from tuner.launch.call_cache import CallCache

Planned = tuple[tuple[torch.Tensor | None, ...], tuple[Hashable, ...]]
"""The operands and the options under which a call's plan is stored."""
_NO_OPERANDS = (AttributeError, IndexError, RuntimeError, TypeError)
"""Raised where an argument is missing or of a wrong kind; torch says which."""


LIBRARY = torch.library.Library("triton_tuner", "DEF")


def define(signature: str, run: Callable[..., Any], shaped: Callable[..., Any]) -> None:
    """Define an operator of triton-tuner's.

    Args:
        signature: Its name, arguments and result in torch's words: "linear(Tensor x, Tensor weight) -> Tensor".
        run: What it does, on every device; torch has recorded gradients by then.
        shaped: Takes the same arguments without values and returns a result without values. It checks what it can.
    """
    operator = signature.partition("(")[0]
    LIBRARY.define(signature)
    LIBRARY.impl(operator, run, "CompositeExplicitAutograd")
    # Not by `register_fake`, which looks for the caller's source in every module that was imported.
    LIBRARY.impl(operator, shaped, "Meta")


def plan_first(operator: str, cache: CallCache, planned: Callable[..., Planned | None]) -> None:
    """Let calls of an operator of triton-tuner's ask for a plan first; to be called where the operator is defined.

    It changes the hash of torch's object for the operator.

    Args:
        operator: Its name in `torch.ops.triton_tuner`.
        cache: The plans of its calls.
        planned: Takes the operator's arguments by position; None for a call that has no plan.
    """
    overload = getattr(torch.ops.triton_tuner, operator).default
    dispatched = getattr(overload, compat.OVERLOAD_CALLS, None)
    if dispatched is None:
        return
    count_dispatch_modes, count_function_modes = compat.count_dispatch_modes, compat.count_function_modes

    def call(*given: Any, **named: Any) -> Any:
        if named or count_dispatch_modes() or count_function_modes():
            return dispatched(*given, **named)
        try:
            asked = planned(*given)
        except _NO_OPERANDS:
            asked = None
        found = None if asked is None else cache.run(*asked)
        return dispatched(*given) if found is None else found

    setattr(overload, compat.OVERLOAD_CALLS, call)
