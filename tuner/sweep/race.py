"""The race: a few dozen configs instead of all, chosen by a model that learns from each one measured.

First come the configs that are likely for other reasons than the model's: the default, winners of nearby problems, the
portfolio, the best two of every kernel; then the model's own. After each wave the model's estimates are corrected by
how configs like these fared (a distance-weighted mean of the log errors), and the next wave is the most promising of
the rest. It ends when trials bring nothing, or with all it has. docs/search.md: what that guarantees, and what not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from tuner.kernel.config import Config
from tuner.store.records import Outcome, State
from tuner.sweep.search import Strategy
from tuner.sweep.search_problem import Field


class Share(NamedTuple):
    """A number of configs that grows with a space: one of so many, within bounds."""

    one_of: int
    least: int
    most: int

    def of(self, configs: int) -> int:
        """The number for a space of so many configs."""
        return max(self.least, min(self.most, configs // self.one_of))


TRIALS = Share(14, 48, 320)
"""Configs tried of a problem at most, unless told otherwise."""
FIRST = Share(56, 14, 36)
"""Of the first wave; more where there are more kernels or the portfolio asks for it."""
WAVE = Share(200, 4, 16)
PATIENCE = Share(110, 16, 44)
"""Trials without a gain after which a race ends."""
RESERVE = 32
"""Configs worth compiling ahead: a wave learned from changes the order of the rest, but hardly which come soon."""
GAIN = 0.003
"""Of the fastest time, to count as one: a config's own figure moves as much between replays."""
_NEARBY = 4
_COVERING = 4
_OF_EACH_KERNEL = 2
_APART = 2.0
"""Between a kernel's first two: two steps of an axis, or one of two axes; a model that is wrong about one may not be
about the other."""
_KNOWN = 10
"""Fastest trials of earlier runs that take part."""
_PRIOR = 0.15
"""Weight of the median error in each correction, against 1 for a measured config at no distance."""
_CURIOSITY = 0.02
"""What a config unlike any measured one is taken to be faster, in log time, so that no corner goes unseen."""
_HINTS = {"GROUP_SIZE_M": 0.4, "EPILOGUE_PARTS": 0.5}
"""Parameters that move a time less than their steps suggest; all others count in full."""

_Array = np.ndarray[Any, np.dtype[np.float64]]


class Race:
    """The race for one problem's winner."""

    def __init__(self, field: Field) -> None:
        """Rank every config by its kernel's estimate.

        Args:
            field: what may be tried.
        """
        self.stopped = ""
        self._field = field
        self._configs = list(dict.fromkeys([field.default, *field.configs]))
        self._index = {config: number for number, config in enumerate(self._configs)}
        self._estimates = np.array([_estimate(field, config) for config in self._configs])
        self._places = _places(self._configs)
        self._predicted = self._estimates
        self._proposed: dict[Config, None] = {}
        self._best = math.inf
        self._since_gain = 0
        count = len(self._configs)
        self._wave, self._patience = WAVE.of(count), PATIENCE.of(count)
        self.most = min(TRIALS.of(count) if field.trials is None else field.trials, count)

    def propose(self, outcomes: Mapping[Config, Outcome]) -> Sequence[Config]:
        """The next wave; none when trials bring nothing any more, or all are spent."""
        left = self.most - len(self._proposed)
        self._learn(outcomes)
        if not self._proposed:
            return self._take(self._starters(outcomes), left)
        if left <= 0:
            whole = self.most == len(self._configs)
            self.stopped = "every config was tried" if whole else f"its {self.most} trials are spent"
        elif self._since_gain >= self._patience:
            self.stopped = f"{self._since_gain} trials brought no gain"
        if self.stopped:
            return ()
        wave = self._take(self._promising(), min(self._wave, left))
        self._since_gain += len(wave)
        return wave

    def reserve(self) -> Sequence[Config]:
        """What would come next by what is known."""
        left = self.most - len(self._proposed)
        coming = (config for config in self._promising() if config not in self._proposed)
        return list(islice(coming, min(RESERVE, left)))

    def _take(self, candidates: Iterator[Config], count: int) -> list[Config]:
        wave: dict[Config, None] = {}
        for config in candidates:
            if len(wave) >= count:
                break
            if config not in self._proposed:
                wave[config] = None
        self._proposed |= wave
        return list(wave)

    def _starters(self, known: Mapping[Config, Outcome]) -> Iterator[Config]:
        field = self._field
        fastest = sorted(
            (outcome.median_us, config)
            for config, outcome in known.items()
            if outcome.median_us is not None and config in self._index
        )
        chosen = [config for _, config in fastest[:_KNOWN]]
        chosen += field.suggested
        chosen += islice((config for config in field.nearby() if config in self._index), _NEARBY)
        covering = set(field.portfolio)
        chosen += [config for config in self._promising() if config in covering][:_COVERING]
        for name in field.specs:
            chosen += self._apart(config for config in self._promising() if config.kernel == name)
        chosen = list(dict.fromkeys([field.default, *chosen]))
        yield from chosen
        yield from [config for config in self._promising() if config not in chosen][
            : max(0, FIRST.of(len(self._configs)) - len(chosen))
        ]

    def _apart(self, ranked: Iterator[Config]) -> list[Config]:
        """The first of some configs, and those that follow it at a distance from all taken before."""
        taken: list[Config] = []
        for config in ranked:
            place = self._places[self._index[config]]
            if all(np.abs(place - self._places[self._index[other]]).sum() >= _APART for other in taken):
                taken.append(config)
            if len(taken) == _OF_EACH_KERNEL:
                break
        return taken

    def _promising(self) -> Iterator[Config]:
        """Configs from the one of least predicted time on."""
        return (self._configs[index] for index in np.argsort(self._predicted, kind="stable"))

    def _learn(self, outcomes: Mapping[Config, Outcome]) -> None:
        """Correct the estimates by what was measured."""
        measured = {
            self._index[config]: math.log(outcome.median_us)
            for config, outcome in outcomes.items()
            if outcome.state is State.COMPLETE and outcome.median_us and config in self._index
        }
        if not measured:
            return
        best = min(measured.values())
        if best < self._best - GAIN:
            self._since_gain = 0
        self._best = min(self._best, best)
        indices = np.array(list(measured))
        errors = np.array(list(measured.values())) - self._estimates[indices]
        distances = np.abs(self._places[:, None, :] - self._places[None, indices, :]).sum(axis=2)
        weights = np.exp(-distances)
        correction = (weights @ errors + _PRIOR * np.median(errors)) / (weights.sum(axis=1) + _PRIOR)
        novelty = 1 - np.minimum(1.0, weights.max(axis=1))
        self._predicted = self._estimates + correction - _CURIOSITY * novelty


def _estimate(field: Field, config: Config) -> float:
    """Log microseconds by the kernel's model, 0 where it has none: what is measured then has to tell all."""
    model = field.specs[config.kernel].estimate_us
    return 0.0 if model is None else math.log(max(model(config, field.problem, field.device), 1e-3))


def _places(configs: Sequence[Config]) -> _Array:
    """Coordinates of configs, [configs, axes]: log2 of numbers, a unit apart for other kernels, words, truth values."""
    axes = sorted({name for config in configs for name in config})
    words = {"", *(str(value) for config in configs for value in config.values()), *(c.kernel for c in configs)}
    order = {word: number for number, word in enumerate(sorted(words))}
    places = np.zeros((len(configs), len(axes) + len(order)))
    for row, config in enumerate(configs):
        places[row, len(axes) + order[config.kernel]] = 0.5
        for name, value in config.pairs:
            if isinstance(value, int) and not isinstance(value, bool):
                places[row, axes.index(name)] = _HINTS.get(name, 1.0) * math.log2(max(1, value))
            else:
                places[row, len(axes) + order[str(value)]] += 0.5
    return places[:, np.ptp(places, axis=0) > 0]


RACE = Strategy("race", Race, drop=(1.1, 1.05), finalists=2, margin=1.015, revisits=False)
