"""Strategies: in which order, and how many, of a problem's configs are tried."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tuner.kernel.config import Config
from tuner.store.records import Outcome
from tuner.sweep.search_problem import Field


class Search(Protocol):
    """The search for one problem's winner: asked for configs, told how they fared."""

    @property
    def stopped(self) -> str:
        """Why nothing more came, in words; "" before."""
        ...

    @property
    def most(self) -> int:
        """How many configs it will propose at most."""
        ...

    def propose(self, outcomes: Mapping[Config, Outcome]) -> Sequence[Config]:
        """Configs to try next, the most promising first; none ends the search.

        Those whose outcome an earlier run knows may be among them: they cost nothing, and take part in the finals.

        Args:
            outcomes: of every config proposed so far, and of all trials known from earlier runs.
        """
        ...

    def reserve(self) -> Sequence[Config]:
        """Configs that may be proposed next, worth compiling while there is nothing better to compile."""
        ...


@dataclass(frozen=True, slots=True)
class Strategy:
    """How problems are searched, and how many of the leaders the finals see.

    Attributes:
        name: as `--strategy` takes it.
        start: begins one problem's search.
        drop: after each replay of a config, it is replayed again when it is within this factor of the fastest.
        finalists: configs in the finals at most, the default config beside them.
        margin: only configs within this factor of the fastest trial are finalists: single replays of one config differ
            by a few percent.
        revisits: whether a problem that has a standing winner is searched again, for what was not tried.
    """

    name: str
    start: Callable[[Field], Search]
    drop: tuple[float, ...] = (1.5, 1.5)
    finalists: int = 10
    margin: float = 1.05
    revisits: bool = True


@dataclass(slots=True)
class Listed:
    """A search whose configs are known from the start."""

    configs: Sequence[Config]
    exhausted: str
    stopped: str = field(default="", init=False)

    def propose(self, outcomes: Mapping[Config, Outcome]) -> Sequence[Config]:  # noqa: ARG002
        """All of them, once."""
        if self.stopped:
            return ()
        self.stopped = self.exhausted
        return self.configs

    @property
    def most(self) -> int:
        """All of them."""
        return len(self.configs)

    def reserve(self) -> Sequence[Config]:
        """Nothing: all are proposed at once."""
        return ()


def _exhaustive(field: Field) -> Search:
    # In canonical order; a budget takes the first ones.
    return _listed(field, field.configs)


def _random(field: Field) -> Search:
    count = min(field.budget, len(field.configs))
    return _listed(field, random.Random(field.seed).sample(list(field.configs), count))


def _listed(field: Field, configs: Sequence[Config]) -> Search:
    chosen = list(dict.fromkeys([field.default, *configs]))[: field.budget]
    whole = len(chosen) >= len(field.configs)
    return Listed(chosen, "every config was tried" if whole else f"its {len(chosen)} trials are spent")


EXHAUSTIVE = Strategy("exhaustive", _exhaustive)
RANDOM = Strategy("random", _random)
