"""The decorator that makes a search space's rule of the function that rejects configs."""

from __future__ import annotations

from collections.abc import Callable

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernel.space import Rule
from tuner.problem import Problem

_Rejects = Callable[[Config, Problem, Device], str | None]


def rule(
    name: str, source: str, *, fatal: bool = False, early: bool = False, reads: tuple[str, ...] = ()
) -> Callable[[_Rejects], Rule]:
    """Make a `Rule` of the decorated function. The arguments are the rule's; one that `reads` is given for is early."""
    return lambda rejects: Rule(name, source, rejects, fatal, early or bool(reads), reads)
