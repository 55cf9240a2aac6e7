"""The end of a search: trying the options of the leading configs (`SearchSpace.refine`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tuner.kernel.config import Config
from tuner.store.records import Outcome
from tuner.sweep.search import Search, by_time

LEADERS = 2
"""How many leading configs are refined: an option changes a time by a few percent, as much as separates the leaders."""
MOST = 8
"""The most refinements tried."""


class RefinedSearch:
    """A search followed by the refinements of the configs that lead at its end."""

    def __init__(
        self, search: Search, refine: Callable[[Config], Sequence[Config]], trials: int | None, *, able: bool
    ) -> None:
        """Begin with the search itself.

        Args:
            search: the search that comes first.
            refine: returns a config's refinements; a refinement has none itself.
            trials: the most configs to try, those of the search included; None for no limit.
            able: whether any config may have refinements; otherwise `most` is the search's own.
        """
        self._search, self._refine, self._trials, self._able = search, refine, trials, able
        self._count = 0
        self._over = False
        self._coming: Sequence[Config] = ()

    @property
    def stopped(self) -> str:
        """Why the search ended, in words; "" until the refinements were proposed too."""
        return self._search.stopped if self._over else ""

    @property
    def most(self) -> int:
        """The most configs that it will propose."""
        most = self._search.most + (MOST if self._able else 0)
        return most if self._trials is None else min(most, self._trials)

    def propose(self, outcomes: Mapping[Config, Outcome]) -> Sequence[Config]:
        """Return what the search proposes, and once the search has ended, the leaders' refinements."""
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
        """Return the search's own reserve, then the current leaders' refinements: most leaders are found early."""
        return [*self._search.reserve(), *self._coming]

    def _refinements(self, outcomes: Mapping[Config, Outcome]) -> list[Config]:
        """Return the leaders' refinements that were not tried yet."""
        found = dict.fromkeys(one for leader in by_time(outcomes)[:LEADERS] for one in self._refine(leader))
        return [config for config in found if config not in outcomes]
