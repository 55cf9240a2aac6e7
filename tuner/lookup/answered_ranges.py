"""Answers for ranges of Ms: a new M of a range that was answered before gets the same."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from tuner.bounded import make_room
from tuner.lookup.decision import Decision, Match
from tuner.lookup.read_sources import ReadSources
from tuner.problem import Problem
from tuner.problem.batches import Key, split

if TYPE_CHECKING:
    from tuner.lookup.miss_counts import MissCounter

Known = tuple[Match, "MissCounter | None"]
"""An answer, and what counts its calls where they are misses that are recorded."""
MOST = 65_536
"""Families with answers: every length of a growing cache may be a family of its own."""


class AnsweredRanges:
    """The ranges of a family's Ms whose answer is known, ascending and disjoint."""

    __slots__ = ("_known", "_last_ms")

    def __init__(self) -> None:
        """Begin with none."""
        self._last_ms: list[int] = []
        self._known: list[tuple[int, Known]] = []

    def at(self, m: int) -> Known | None:
        """The answer for an M; None where none is known."""
        place = bisect_left(self._last_ms, m)
        if place == len(self._last_ms):
            return None
        first, known = self._known[place]
        return known if first <= m else None

    def last(self, m: int) -> int:
        """The last M of the range that holds an M whose answer is known."""
        return self._last_ms[bisect_left(self._last_ms, m)]

    def add(self, ms: tuple[int, int], match: Match, counter: MissCounter | None) -> None:
        """Note the answer for a range; one that holds an M of a range noted before is left out."""
        first, last = ms
        place = bisect_left(self._last_ms, first)
        if place == len(self._last_ms) or last < self._known[place][0]:
            self._known.insert(place, (first, (match, counter)))
            self._last_ms.insert(place, last)


class FamilyAnswers:
    """The answered ranges of families, and of batches that every source serves by the same rows."""

    def __init__(self, sources: ReadSources) -> None:
        """Begin with none; the sources say which batches they serve by the same rows."""
        self._sources = sources
        self._by_family: dict[tuple[str, Key], AnsweredRanges] = {}
        self._by_batch: dict[tuple[str, Key], tuple[list[int], list[AnsweredRanges]]] = {}

    def at(self, problem: Problem, slug: str) -> Known | None:
        """The answer for the range that holds a problem's M; None where none is known."""
        known, (key, batch) = None, split(problem)
        if batch and (cut := self._by_batch.get((slug, key))) is not None:
            lasts, answered = cut
            known = answered[bisect_left(lasts, batch)].at(problem.m)
        if known is None and (ranges := self.of_family(problem, slug)) is not None:
            known = ranges.at(problem.m)
        return known

    def of_family(self, problem: Problem, slug: str) -> AnsweredRanges | None:
        """The ranges noted for this very family; None where there are none."""
        return self._by_family.get((slug, problem.family))

    def add(self, problem: Problem, slug: str, decision: Decision, counter: MissCounter | None) -> None:
        """Note a decision's answer, and what counts its calls, for its range of Ms."""
        for kept in (self._by_family, self._by_batch):
            make_room(kept, MOST)
        # Other answers are for this batch alone: the formula's config hangs on it.
        ranges = self._of_batches(problem, slug) if decision.match.rule == "family" else None
        ranges = ranges or self._by_family.setdefault((slug, problem.family), AnsweredRanges())
        ranges.add(decision.ms, decision.match, counter)

    def _of_batches(self, problem: Problem, slug: str) -> AnsweredRanges | None:
        """The ranges of all batches that every source serves by the same rows; None where the op has no batch."""
        key, batch = split(problem)
        if not batch:
            return None
        if (slug, key) not in self._by_batch:
            held = [tuned for winners in self._sources.own(slug) if (tuned := winners.families.get(key))]
            lasts = sorted({last for tuned in held for last in tuned.last_of_each()})
            self._by_batch[slug, key] = lasts, [AnsweredRanges() for _ in range(len(lasts) + 1)]
        lasts, answered = self._by_batch[slug, key]
        return answered[bisect_left(lasts, batch)]
