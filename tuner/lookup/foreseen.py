"""What was decided before a call asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tuner.bounded import make_room
from tuner.kernel.config import Config
from tuner.lookup.decision import Decision
from tuner.problem import Problem
from tuner.problem.batches import Key

MOST = 65_536
"""Families about which something is foreseen."""


class Foreseen:
    """The formula's decisions about ranges of Ms that nobody asked for yet, and the Ms at which its configs can run."""

    def __init__(self) -> None:
        """Begin with none."""
        self._decisions: dict[tuple[str, Key], list[Decision]] = {}
        self._runs: dict[tuple[str, Key, Config], set[int]] = {}

    def decisions(self, problem: Problem, slug: str) -> Iterator[Decision]:
        """Those whose range holds a problem's M."""
        known = self._decisions.get((slug, problem.family), ())
        return (each for each in known if each.ms[0] <= problem.m <= each.ms[1])

    def add(self, problem: Problem, slug: str, decision: Decision) -> None:
        """Note a decision about a problem's family."""
        make_room(self._decisions, MOST)
        self._decisions.setdefault((slug, problem.family), []).append(decision)

    def is_known_to_run(self, config: Config, problem: Problem, slug: str) -> bool:
        """Whether a config was found to run at a problem's M."""
        return problem.m in self._runs.get((slug, problem.family, config), ())

    def add_runs(self, config: Config, problem: Problem, slug: str, ms: Iterable[int]) -> None:
        """Note the Ms of a problem's family at which a config can run."""
        make_room(self._runs, MOST)
        self._runs.setdefault((slug, problem.family, config), set()).update(ms)
