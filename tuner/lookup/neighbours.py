"""A source's rows arranged by the shapes of their problems, to find those near a problem that nobody tuned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.lookup.row import Row
from tuner.problem import Problem
from tuner.problem import distance as nearness
from tuner.problem.distance import Place

REACH = 3.0
"""The largest distance of a neighbour (`tuner.problem.distance.apart`). Beyond it winners lose to the formula."""
MOST = 16
"""How many rows of one source are looked at for one problem: a large table must not cost a check of each row."""
OTHER_FAMILY = 1.0
"""What another dtype of the same size, layout or epilogue adds to the distance."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A row of a problem near another one.

    Attributes:
        row: the nearby problem's row.
        distance: how far its problem is away; 0 for the problem itself.
    """

    row: Row
    distance: float


class Neighbourhood:
    """A source's groups of problems that differ in M alone. They are indexed when first asked for."""

    def __init__(self, groups: Mapping[Problem, Sequence[Row]]) -> None:
        """Take a source's rows by `Problem.group()`."""
        self._groups = groups
        self._found: dict[Problem, Sequence[tuple[Place, Row]]] = {}
        self._kinds: dict[tuple[object, ...], list[tuple[Place, Problem]]] | None = None

    def by_m(self, problem: Problem, sm_count: int) -> list[Neighbour]:
        """Rows of problems that differ from this one in M alone, if at all, the nearest first.

        Of two at the same distance the larger M comes first: its tile wastes masked rows, while the tile of a smaller M
        reads all of B once more.
        """
        return sorted(_within(self._members(problem.group()), nearness.place(problem), sm_count), key=_order)

    def around(self, problem: Problem, sm_count: int) -> list[Neighbour]:
        """The `MOST` nearest rows within `REACH` of a problem, those of `by_m` among them.

        Args:
            problem: the problem that is looked up.
            sm_count: how many multiprocessors the device has.
        """
        here = nearness.place(problem)
        groups = sorted(
            (_at_least(shared, here), number, group) for number, (shared, group) in enumerate(self._of_kind(here.kind))
        )
        found: list[Neighbour] = []
        for least, _, group in groups:
            if least > REACH or (len(found) == MOST and least > found[-1].distance):
                break  # no row of this group or of those after it is nearer
            found = sorted([*found, *_within(self._members(group), here, sm_count)], key=_order)[:MOST]
        return found

    def _members(self, group: Problem) -> Sequence[tuple[Place, Row]]:
        """A group's rows with their places. They are kept, since finding them may take a source some time."""
        found = self._found.get(group)
        if found is None:
            found = [(nearness.place(row.problem), row) for row in self._groups.get(group, ())]
            if found:
                self._found[group] = found
        return found

    def _of_kind(self, kind: tuple[object, ...]) -> Sequence[tuple[Place, Problem]]:
        if self._kinds is None:
            kinds: dict[tuple[object, ...], list[tuple[Place, Problem]]] = {}
            for group in self._groups:
                place = nearness.place(group)
                kinds.setdefault(place.kind, []).append((place, group))
            self._kinds = kinds  # whole or not at all: threads may build it twice, none sees half of it
        return self._kinds.get(kind, ())


def _within(members: Iterable[tuple[Place, Row]], here: Place, sm_count: int) -> Iterator[Neighbour]:
    """The rows within `REACH`."""
    for place, row in members:
        away = nearness.apart(place, here, sm_count) + (OTHER_FAMILY if place.family != here.family else 0.0)
        if away <= REACH:
            yield Neighbour(row, away)


def _order(near: Neighbour) -> tuple[float, int]:
    return near.distance, -near.row.problem.m


def _at_least(shared: Place, here: Place) -> float:
    """The least distance of a group's rows, whatever their M."""
    other = shared.family != here.family
    return math.dist(shared.sizes[1:], here.sizes[1:]) + (OTHER_FAMILY if other else 0.0)
