"""What a search is: it proposes configs for one problem and learns how they fared. A strategy says how to search."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tuner.kernel.config import Config
from tuner.store.records import Outcome, State
from tuner.sweep.search_task import SearchTask

REFINED_LEADERS = 2
"""How many leading configs are refined: an option changes a time by a few percent, and so do leaders differ."""
MAX_REFINEMENTS = 8
"""The most refinements tried."""


class Search(Protocol):
    """The search for one problem's winner: it is asked for configs and told how they fared."""

    @property
    def stopped(self) -> str:
        """Why the search ended, in words; "" while it goes on."""
        ...

    @property
    def most(self) -> int:
        """The most configs that it will propose."""
        ...

    def propose(self, outcomes: Mapping[Config, Outcome]) -> Sequence[Config]:
        """Return the configs to try next, the most promising first; an empty answer ends the search.

        A proposal may contain configs whose outcome an earlier run recorded: they cost nothing and take part in the
        finals.

        Args:
            outcomes: the outcomes of every config proposed so far, and of all trials known from earlier runs.
        """
        ...

    def reserve(self) -> Sequence[Config]:
        """Return configs that may be proposed next, worth compiling while nothing more urgent waits."""
        ...


@dataclass(frozen=True, slots=True)
class Strategy:
    """How problems are searched, and how many of the leading configs play the finals.

    Attributes:
        name: the name that `--strategy` takes.
        start: begins one problem's search.
        drop: after each replay, a config is replayed again only if it is within this factor of the fastest.
        finalists: the most configs in the finals, not counting the default config.
        margin: finalists are within this factor of the fastest trial, because single replays of one config differ by a
            few percent.
        rounds: how many paired rounds every finalist plays; None as many as the timer's protocol says.
        revisits: whether a problem that has a winner is searched again for configs that were not tried.
    """

    name: str
    start: Callable[[SearchTask], Search]
    drop: tuple[float, ...] = (1.5, 1.5)
    finalists: int = 10
    margin: float = 1.05
    rounds: int | None = None
    revisits: bool = True


@dataclass(slots=True)
class FixedList:
    """A search whose configs are known from the start; `stopped` says `exhausted` once they were proposed."""

    configs: Sequence[Config]
    exhausted: str
    stopped: str = field(default="", init=False)

    def propose(self, outcomes: Mapping[Config, Outcome]) -> Sequence[Config]:  # noqa: ARG002
        """Return all configs, once."""
        if self.stopped:
            return ()
        self.stopped = self.exhausted
        return self.configs

    @property
    def most(self) -> int:
        """The number of configs."""
        return len(self.configs)

    def reserve(self) -> Sequence[Config]:
        """Return nothing, because all configs are proposed at once."""
        return ()


def spent(trials: int) -> str:
    """Why a search stopped that made all the trials it was given."""
    return f"its {trials} trials are spent" if trials != 1 else "its one trial is spent"


def by_time(outcomes: Mapping[Config, Outcome]) -> list[Config]:
    """Return the configs whose trial is COMPLETE, the fastest first."""
    times = times_of(outcomes)
    return sorted(times, key=lambda config: (times[config], config))


def times_of(outcomes: Mapping[Config, Outcome]) -> dict[Config, float]:
    """Return the median of every config whose trial is COMPLETE, microseconds."""
    return {
        config: outcome.median_us
        for config, outcome in outcomes.items()
        if outcome.state is State.COMPLETE and outcome.median_us is not None
    }


def failures_of(outcomes: Mapping[Config, Outcome]) -> frozenset[Config]:
    """Return the configs that failed: not those left out because another's program is theirs (INVALID)."""
    right = (State.COMPLETE, State.INVALID)
    return frozenset(config for config, outcome in outcomes.items() if outcome.state not in right)


class RefinedSearch:
    """A search followed by the refinements of the configs that lead at its end."""

    def __init__(
        self, search: Search, refine: Callable[[Config], Sequence[Config]], trials: int | None, *, refinable: bool
    ) -> None:
        """Begin with the search itself.

        Args:
            search: the search that comes first.
            refine: returns a config's refinements; a refinement has none itself.
            trials: the most configs to try, those of the search included; None for no limit.
            refinable: whether any config may have refinements; otherwise `most` is the search's own.
        """
        self._search, self._refine, self._trials, self._refinable = search, refine, trials, refinable
        self._count = 0
        self._proposed: set[Config] = set()
        self._over = False
        self._coming: Sequence[Config] = ()

    @property
    def stopped(self) -> str:
        """Why the search ended, in words; "" until the refinements were proposed too."""
        return self._search.stopped if self._over else ""

    @property
    def most(self) -> int:
        """The most configs that it will propose."""
        most = self._search.most + (MAX_REFINEMENTS if self._refinable else 0)
        return most if self._trials is None else min(most, self._trials)

    def propose(self, outcomes: Mapping[Config, Outcome]) -> Sequence[Config]:
        """Return what the search proposes, and once the search has ended, the leaders' refinements."""
        if self._over:
            return ()
        wave = self._search.propose(outcomes)
        left = MAX_REFINEMENTS if self._trials is None else min(MAX_REFINEMENTS, self._trials - self._count)
        self._proposed.update(wave)
        refinements = self._refinements(outcomes)
        new = [config for config in refinements if config not in outcomes][: max(0, left)]
        if wave:
            self._coming = new
        else:
            self._over, self._coming = True, ()
            # What an earlier run tried costs nothing, and plays the finals if it is fast.
            wave = [*(config for config in refinements if config in outcomes), *new]
            self._proposed.update(wave)
        self._count += len(wave)
        return wave

    def reserve(self) -> Sequence[Config]:
        """Return the search's own reserve, then the current leaders' refinements: most leaders are found early."""
        return [*self._search.reserve(), *self._coming]

    def _refinements(self, outcomes: Mapping[Config, Outcome]) -> list[Config]:
        """Return the leaders' refinements, and those that lead by an earlier run's trials, less what was proposed."""
        ranked = by_time(outcomes)
        refined = (refinements for config in ranked if (refinements := self._refine(config)))
        found = dict.fromkeys(one for refinements in itertools.islice(refined, REFINED_LEADERS) for one in refinements)
        if leading := [
            config for config in ranked[:MAX_REFINEMENTS] if config not in self._proposed and config not in found
        ]:
            ours = {one for config in self._proposed if config in outcomes for one in self._refine(config)}
            found.update(dict.fromkeys(config for config in leading if config in ours))
        return [config for config in found if config not in self._proposed]
