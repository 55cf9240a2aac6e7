"""The answers that were given, by problem: what a hit reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tuner.bounded import make_room
from tuner.lookup.decision import Match
from tuner.problem import Problem

if TYPE_CHECKING:
    from tuner.lookup.miss_counts import MissCounter

MOST = 65_536
"""Answers kept, 2.5 KB each with the row (benchmarks/results/loading.json): M may take every value in a server."""


class Missed(NamedTuple):
    """The answer for a problem whose calls are counted."""

    match: Match
    counter: MissCounter

    def called(self) -> Match:
        """Count one more call, and answer it."""
        self.counter.count()
        return self.match


class Answers:
    """Answers by problem. A hit is one dict access, without a lock; whoever writes holds `lookup_lock`.

    Attributes:
        by_slug: by the device's slug, then by problem.
        missed: those whose calls are counted, by slug and problem.
    """

    __slots__ = ("by_slug", "missed")

    def __init__(self) -> None:
        """Begin with none."""
        self.by_slug: dict[str, dict[Problem, Match]] = {}
        self.missed: dict[tuple[str, Problem], Missed] = {}

    def of(self, slug: str) -> dict[Problem, Match]:
        """A device's answers whose calls are not counted: always the same dict."""
        return self.by_slug.setdefault(slug, {})

    def again(self, problem: Problem, slug: str) -> Match | None:
        """The answer of before, counted where its calls are; None where there is none."""
        if (missed := self.missed.get((slug, problem))) is not None:
            return missed.called()
        return self.by_slug.get(slug, {}).get(problem)

    def keep(self, problem: Problem, slug: str, match: Match, counter: MissCounter | None) -> Match:
        """Keep an answer and give it; with a counter, this call is the first that it counts."""
        if counter is None:
            answers = self.of(slug)
            make_room(answers, MOST)
            answers[problem] = match
            return match
        make_room(self.missed, MOST)
        missed = self.missed[slug, problem] = Missed(match, counter)
        return missed.called()

    def drop(self, problem: Problem, slug: str) -> None:
        """Forget an answer, if there is one."""
        self.by_slug.get(slug, {}).pop(problem, None)
        self.missed.pop((slug, problem), None)
