"""Which Ms of a range a config serves by the same launches, so that a new M needs a number exchanged and no more.

Every M is looked at, by the kernel's own host code on operands without memory: what it launches must be equal but for
numbers that are M itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.launch.arguments import GRID, Place
from tuner.launch.launch import Launch
from tuner.launch.plan import LAST_M, LaunchRange, recorded
from tuner.problem import Problem
from tuner.problem.family import unit_of

MOST_OF_A_RANGE = 64
"""Parts of one range that are launched alike. Where each M is launched in another way, some are left to their calls."""


class _Facts(NamedTuple):
    """What the launches of one M are made of.

    Attributes:
        fixed: everything but `numbers`.
        numbers: by launch and place, the numbers that may be M.
    """

    fixed: Any
    numbers: dict[tuple[int, Place], int]


def launch_ranges(problem: Problem, config: Config, first_m: int, last_m: int) -> list[LaunchRange]:
    """Split a range into what is launched alike; what is launched in ways that nobody knows is left out.

    Args:
        problem: one of the range's problems.
        config: the config that serves it.
        first_m, last_m: the range.

    Raises:
        Exception: whatever a kernel raises where it has no launches without memory.
    """
    last_m = last_m if first_m == last_m else min(last_m, LAST_M)
    if first_m < last_m and unit_of(problem) > 1:  # not every M of the range can be launched
        return []
    found = _split(lambda m: _facts(problem.with_m(m), config), first_m, last_m)
    if len(found) <= MOST_OF_A_RANGE:
        return found
    return [each for each in found if each.first_m < each.last_m][:MOST_OF_A_RANGE]


def _split(facts_of: Callable[[int], _Facts | None], first_m: int, last_m: int) -> list[LaunchRange]:
    found: list[LaunchRange] = []
    begin, begun, places = first_m, None, None
    for m in range(first_m, last_m + 2):
        facts = facts_of(m) if m <= last_m else None
        changed = _changed(begun, begin, facts, m)
        if changed is not None and (places is None or changed == places):
            places = changed
            continue
        if begun is not None:
            found.append(LaunchRange(begin, m - 1, _by_launch(places or set(), len(begun.fixed))))
        begin, begun, places = m, facts, None
    return found


def _changed(begun: _Facts | None, begin: int, facts: _Facts | None, m: int) -> set[tuple[int, Place]] | None:
    """The places at which one M's launches differ from another's, which hold M; None where they differ otherwise."""
    if begun is None or facts is None or begun.fixed != facts.fixed or begun.numbers.keys() != facts.numbers.keys():
        return None
    changed = {place for place, number in facts.numbers.items() if number != begun.numbers[place]}
    holds_m = all((begun.numbers[place], facts.numbers[place]) == (begin, m) for place in changed)
    return changed if holds_m else None


def _by_launch(places: set[tuple[int, Place]], launches: int) -> list[list[Place]]:
    return [sorted(place for which, place in places if which == each) for each in range(launches)]


def _facts(problem: Problem, config: Config) -> _Facts | None:
    with recorded(lambda _launch: None) as seen:  # nothing is compiled
        registry.find(problem.op, config.kernel, problem.source).compile(problem, config)
    if seen.temporaries:
        return None
    fixed: list[Any] = []
    numbers: dict[tuple[int, Place], int] = {}
    for which, (launch, _) in enumerate(seen.launches):
        programs, *others = launch.grid
        fixed.append((launch.key, others, launch.concurrent, _fixed_arguments(launch)))
        numbers[which, GRID] = programs
        for at, argument in enumerate(launch.arguments):
            if hasattr(argument, "block_shape"):
                numbers |= {(which, (at, axis)): extent for axis, extent in enumerate(argument.shape)}
            elif isinstance(argument, int) and not isinstance(argument, bool):
                numbers[which, (at,)] = argument
    return _Facts(fixed, numbers)


def _fixed_arguments(launch: Launch) -> Sequence[Any]:
    """Of each argument what is not among the numbers: a descriptor's strides, whether there is a tensor, a float."""
    return [
        [*argument.strides]
        if hasattr(argument, "block_shape")
        else "tensor"
        if hasattr(argument, "data_ptr")
        else None
        if isinstance(argument, int) and not isinstance(argument, bool)
        else argument
        for argument in launch.arguments
    ]
