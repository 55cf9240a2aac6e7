"""Operators that run the plan of an equal earlier call before torch dispatches: that takes as long as a launch.

Programs of torch.compile and torch.export call operators from Python. A plan serves only what gradients, autocast,
torch's modes and its transforms leave alone (call_cache.py), and for such a call the dispatcher does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tuner.launch import compat


def plan_first(operator: str, planned: Callable[..., torch.Tensor | None]) -> None:
    """Let calls of an operator of triton-tuner's ask for a plan first.

    Args:
        operator: Its name in `torch.ops.triton_tuner`.
        planned: Takes the operator's arguments by position, and gives None where there is no plan.
    """
    overload = getattr(torch.ops.triton_tuner, operator).default
    dispatched = getattr(overload, compat.OVERLOAD_CALLS, None)
    if dispatched is None:
        return

    def call(*given: Any, **named: Any) -> Any:
        try:
            found = None if named else planned(*given)
        except (AttributeError, TypeError):  # an argument is missing or of a wrong type; torch says which
            found = None
        return dispatched(*given, **named) if found is None else found

    setattr(overload, compat.OVERLOAD_CALLS, call)
