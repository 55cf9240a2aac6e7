"""Strict: nothing is compiled while serving. What no shipped binary launches goes to torch's library, or is one error.

The offline tuner compiles all the same; only calls of ops and of kernels under `tuner.tuned` heed it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tuner.errors import UsageError
from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.lookup import lookup as lookups
from tuner.lookup.advice import shipping
from tuner.lookup.decision import TUNED, Match
from tuner.problem import Problem

VARIABLE = "TUNER_STRICT"
_VALUES = {"": False, "0": False, "1": True}
_on: bool | None = None


def strict(on: bool = True) -> None:
    """Compile nothing in this process from now on, or compile again what does not ship.

    `$TUNER_STRICT` does the same in processes that do not call this function. Under Triton's interpreter, which
    compiles nothing, it has no effect.

    Args:
        on: False ends it, whatever `$TUNER_STRICT` says.

    Raises:
        UsageError: `on` is neither True nor False.
    """
    global _on  # noqa: PLW0603
    if not isinstance(on, bool):
        raise UsageError(
            f"tuner.strict takes True or False, got {on!r:.60}: call tuner.strict() or tuner.strict(False)"
        )
    _on = on
    lookups.forget()  # plans and configs that were chosen under the other setting


def is_on() -> bool:
    """Whether this process compiles nothing; the first time, the environment is asked.

    Raises:
        UsageError: `$TUNER_STRICT` is neither 1 nor 0.
    """
    global _on  # noqa: PLW0603
    if _on is None:
        said = os.environ.get(VARIABLE, "")
        if said not in _VALUES:
            raise UsageError(f"${VARIABLE} is {said!r:.60}: expected 1, to compile nothing while serving, or 0")
        _on = _VALUES[said]
    return _on


def note(problem: Problem, device: Device, match: Match, instead: str) -> Callable[[], Any] | None:
    """Log, once a family, that no shipped binary launches an answer, and count the call as a miss.

    Args:
        problem, device, match: What was looked up, and the answer.
        instead: What serves the call, in words.

    Returns:
        What counts further calls; None where misses are not recorded, and where the lookup itself counts them, because
        nobody tuned the problem.
    """
    lookups.resolver().report_no_binary(problem, device, match, instead)
    return _counted(problem, device, match)


def refusal(problem: Problem, device: Device, match: Match, why: object) -> str:
    """What the error of a call says that nothing serves. The call is counted as a miss."""
    _counted(problem, device, match)
    return (
        f"no shipped binary launches {match.config} for {problem} on {device.slug}, nothing is compiled (strict), and "
        f"nothing else serves it: {why}; {shipping(problem, match)}"
    )


def _counted(problem: Problem, device: Device, match: Match) -> Callable[[], Any] | None:
    if match.rule not in TUNED:
        return None
    from tuner.lookup import miss_counts
    from tuner.lookup.misses import NO_BINARY

    ms = (problem.m, problem.m)
    counter = miss_counts.counter_of(problem, ms, device.slug, NO_BINARY, devices.triton_version())
    if counter is None:
        return None
    counter.count()
    return counter.count
