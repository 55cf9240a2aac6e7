"""The end of a search: what options make of the configs that lead (`SearchSpace.refine`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tuner.kernel.config import Config
from tuner.store.records import Outcome, State
from tuner.sweep.search import Search

LEADERS = 2
"""Whose refinements are tried: options move a time by a few percent, and so far apart the two fastest may be."""
MOST = 8
"""Refinements tried, at most."""


class Refined:
    """A search, and after its end the refinements of the configs that lead."""

    def __init__(
        self, search: Search, refine: Callable[[Config], Sequence[Config]], trials: int | None, *, able: bool
    ) -> None:
        """Begin with the search itself.

        Args:
            search: what comes first.
            refine: a config's refinements; none for one that is a refinement itself.
            trials: configs to try at most, those of the search counted; None for no limit.
            able: whether any config may have refinements: else `most` is the search's own.
        """
        self._search, self._refine, self._trials, self._able = search, refine, trials, able
        self._count = 0
        self._over = False
        self._coming: Sequence[Config] = ()

    @property
    def stopped(self) -> str:
        """Why the search ended, in words; "" before what follows it came too."""
        return self._search.stopped if self._over else ""

    @property
    def most(self) -> int:
        """How many configs it will propose at most."""
        most = self._search.most + (MOST if self._able else 0)
        return most if self._trials is None else min(most, self._trials)

    def propose(self, outcomes: Mapping[Config, Outcome]) -> Sequence[Config]:
        """What the search proposes; when that is nothing, once, what leads refined."""
        if self._over:
            return ()
        wave = self._search.propose(outcomes)
        left = MOST if self._trials is None else min(MOST, self._trials - self._count)
        refinements = self._refinements(outcomes)[: max(0, left)]
        if wave:
            self._coming = refinements
        else:
            self._over, self._coming = True, ()
            wave = refinements
        self._count += len(wave)
        return wave

    def reserve(self) -> Sequence[Config]:
        """The search's own, then the refinements of those that lead now: most leaders are found early."""
        return [*self._search.reserve(), *self._coming]

    def _refinements(self, outcomes: Mapping[Config, Outcome]) -> list[Config]:
        """Those of the leaders that were not tried."""
        fastest = sorted(
            (outcome.median_us, config)
            for config, outcome in outcomes.items()
            if outcome.state is State.COMPLETE and outcome.median_us is not None
        )
        found = dict.fromkeys(one for _, leader in fastest[:LEADERS] for one in self._refine(leader))
        return [config for config in found if config not in outcomes]
