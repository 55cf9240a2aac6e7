"""What a sweep is asked to do for each problem, and what it would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.sweep.counted import Counted
from tuner.sweep.race import RACE
from tuner.sweep.search import Strategy

if TYPE_CHECKING:
    from tuner.store.store import Store


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for each problem.

    Attributes:
        strategy: picks and orders the candidates.
        trials: the most candidates tried for a problem, None for all.
        time_budget_s: seconds that the sweep may take, from the start of its processes. No trial is begun that would
            leave no time for finals; a problem with any trial is decided on what was measured.
        fresh: measure again what earlier runs measured.
        fresh_since: with `fresh`, a run by its uuid or the beginning of it: what it and later runs measured is not
            measured again.
        seed: seeds random choices.
        suggested: configs that others chose for a problem (`tuner import`), tried beside the strategy's own.
    """

    strategy: Strategy = RACE
    trials: int | None = None
    time_budget_s: float | None = None
    fresh: bool = False
    fresh_since: str | None = None
    seed: int = 0
    suggested: Mapping[Problem, Sequence[Config]] = field(default_factory=dict)

    def counted(self, store: Store) -> Counted:
        """The earlier runs of a store whose trials and decisions count.

        Raises:
            StoreError: there is no run `fresh_since`, or more than one.
        """
        counted = Counted(frozenset() if self.fresh else None, self.fresh_since)
        counted.renew(store)
        return counted


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a sweep would do for a problem: try at most `to_try` of `considered` configs, besides `known` trials."""

    problem: Problem
    default: Config | None
    considered: int
    to_try: int
    known: int
    reason: str = ""
