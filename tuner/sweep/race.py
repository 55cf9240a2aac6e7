"""The race: instead of all configs it tries a few dozen, chosen by a model that learns from each one measured.

The first wave holds configs that are promising for reasons other than the model: the default, winners of nearby
problems, the portfolio, and the best two of every kernel that is not far behind. The model chooses the rest. After each
wave the model's estimates are corrected by how similar configs fared (a distance-weighted mean of the log errors), and
the next wave is the most promising of the rest. The race ends when trials bring no gain, or when all its trials are
spent.
docs/search.md says what that guarantees and what not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from tuner.kernel.config import Config
from tuner.store.records import Outcome
from tuner.sweep.search import Strategy, by_time, spent, times_of
from tuner.sweep.search_task import SearchTask

LEAST_TRIALS = 48
"""How many configs a race of a problem with a small search space tries; of a larger one it tries more (`FULL`)."""


class Share(NamedTuple):
    """A number of configs that grows with the search space: one in `one_of`, within bounds."""

    one_of: int
    least: int
    most: int

    def of(self, configs: int) -> int:
        """Return the number for a space of this many configs."""
        return max(self.least, min(self.most, configs // self.one_of))


class Pace(NamedTuple):
    """How many configs a race tries.

    Attributes:
        trials: the most, unless `--trials` says otherwise.
        first: the size of the first wave; it grows where there are more kernels or a larger portfolio.
        wave: the size of each wave after it.
        patience: a race ends after this many trials without a gain.
    """

    trials: Share
    first: Share
    wave: Share
    patience: Share


FULL = Pace(
    trials=Share(14, LEAST_TRIALS, 320), first=Share(120, 8, 16), wave=Share(200, 4, 16), patience=Share(110, 16, 44)
)
"""The pace where nothing like the problem was measured."""
WARM_STARTED = Pace(Share(1, 16, 16), Share(1, 8, 8), Share(1, 4, 4), Share(1, 4, 4))
"""The pace where rungs of the same ladder were measured: their winners and their times are known."""
PROBED = Pace(Share(1, 6, 6), Share(1, 6, 6), Share(1, 1, 1), Share(1, 1, 1))
"""The pace between two rungs that are close to each other."""
RESERVE = 32
"""How many configs are compiled ahead. A wave changes the order of those that follow, but rarely which come soon."""
GAIN = 0.003
"""A smaller relative improvement is no gain: one config's own figure varies as much between replays."""
_NEARBY = 4
_COVERING = 4
_OF_EACH_KERNEL = 2
_FAR_BEHIND = math.log(1.5)
"""A kernel whose best estimate is so much log time behind the best of all has no place in the first wave. No winner of
460 races was of such a kernel, and 16 trials find more without them (docs/decisions.md, 150)."""
_APART = 2.0
"""The distance between a kernel's first two configs: two steps of one axis, or one step of two axes. A model that is
wrong about one of them may be right about the other."""
_KNOWN = 10
"""How many of the fastest trials of earlier runs take part."""
_PRIOR = 0.15
"""The weight of the median error in each correction; a measured config at distance 0 weighs 1."""
_EXPLORATION_BONUS = 0.02
"""How much faster, in log time, a config unlike all measured ones is assumed to be, so that it is tried too."""
_AXIS_WEIGHTS = {"GROUP_SIZE_M": 0.4, "EPILOGUE_PARTS": 0.5}
"""Parameters that change a time less than their steps suggest; all others weigh 1."""

_Array = np.ndarray[Any, np.dtype[np.float64]]


class Race:
    """The race for one problem's winner."""

    def __init__(self, task: SearchTask, *, warm_pace: Pace = WARM_STARTED) -> None:
        """Rank every config by its kernel's estimate; `warm_pace` is the pace where something like it was measured."""
        self._warm_pace = warm_pace
        self.stopped = ""
        self._task = task
        self._configs = list(dict.fromkeys([task.default, *task.configs]))
        self._index = {config: number for number, config in enumerate(self._configs)}
        self._estimates = np.array([task.estimate(config) for config in self._configs])
        self._points = _coordinates(self._configs)
        self._nearness: dict[int, np.ndarray[Any, np.dtype[np.float32]]] = {}
        self._predicted = self._estimates
        self._ranking: Sequence[int] = ()
        self._proposed: dict[Config, None] = {}
        self._best = math.inf
        self._trials_without_gain = 0
        self._errors: Mapping[Config, tuple[float, float]] = {}
        self._set_pace(FULL)

    def _set_pace(self, pace: Pace) -> None:
        count = len(self._configs)
        self._pace, self._wave, self._patience = pace, pace.wave.of(count), pace.patience.of(count)
        self.most = min(pace.trials.of(count) if self._task.trials is None else self._task.trials, count)

    def propose(self, outcomes: Mapping[Config, Outcome]) -> Sequence[Config]:
        """Return the next wave; nothing when trials bring no gain any more, or all are spent."""
        if not self._proposed:
            self._errors = {config: error for config, error in self._task.errors().items() if config in self._index}
            self._set_pace(self._warm_pace if self._errors else FULL)
        left = self.most - len(self._proposed)
        self._learn(outcomes)
        if not self._proposed:
            return self._take(self._starters(outcomes), left)
        if left <= 0:
            complete = self.most == len(self._configs)
            self.stopped = "every config was tried" if complete else spent(self.most)
        elif self._trials_without_gain >= self._patience:
            self.stopped = f"{self._trials_without_gain} trials brought no gain"
        if self.stopped:
            return ()
        wave = self._take(self._promising(), min(self._wave, left))
        self._trials_without_gain += len(wave)
        return wave

    def reserve(self) -> Sequence[Config]:
        """Return what would come next by what is known now."""
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
        task = self._task
        chosen = list(task.suggested)
        chosen += [config for config in by_time(known) if config in self._index][:_KNOWN]
        chosen += islice((config for config in task.nearby() if config in self._index), _NEARBY)
        if not self._errors:
            covering = set(task.portfolio)
            chosen += [config for config in self._promising() if config in covering][:_COVERING]
            for name in self._not_far_behind():
                chosen += self._apart(config for config in self._promising() if config.kernel == name)
        chosen = list(dict.fromkeys([task.default, *chosen]))
        yield from chosen
        yield from [config for config in self._promising() if config not in chosen][
            : max(0, self._pace.first.of(len(self._configs)) - len(chosen))
        ]

    def _not_far_behind(self) -> list[str]:
        """Return the kernels that may win by their estimates, and those that have none."""
        specs = self._task.specs
        best: dict[str, float] = {}
        for config, estimate in zip(self._configs, self._estimates, strict=True):
            if specs[config.kernel].estimate_us is not None:
                best[config.kernel] = min(estimate, best.get(config.kernel, math.inf))
        limit = min(best.values(), default=0.0) + _FAR_BEHIND
        return [name for name in specs if best.get(name, limit) <= limit]

    def _apart(self, ranked: Iterator[Config]) -> list[Config]:
        """Return the first of some configs, then the next that is far enough from all taken before."""
        taken: list[Config] = []
        for config in ranked:
            point = self._points[self._index[config]]
            if all(np.abs(point - self._points[self._index[other]]).sum() >= _APART for other in taken):
                taken.append(config)
            if len(taken) == _OF_EACH_KERNEL:
                break
        return taken

    def _promising(self) -> Iterator[Config]:
        """Yield configs in the order of their predicted time, the shortest first."""
        if not self._ranking:  # sorted once a wave, since this is called for each message of a worker
            self._ranking = np.argsort(self._predicted, kind="stable").tolist()
        return (self._configs[index] for index in self._ranking)

    def _learn(self, outcomes: Mapping[Config, Outcome]) -> None:
        """Correct the estimates by the times measured."""
        times = times_of(outcomes)
        measured = {self._index[config]: math.log(us) for config, us in times.items() if config in self._index}
        best = min(measured.values(), default=math.inf)
        if best < self._best - GAIN:
            self._trials_without_gain = 0
        self._best = min(self._best, best)
        known = {index: (time - self._estimates[index], 1.0) for index, time in measured.items()}
        known = {self._index[config]: error for config, error in self._errors.items()} | known
        if not known:
            return
        errors, trust = np.array(list(known.values())).T
        weights = self._near(list(known)) * trust[:, None]
        correction = (errors @ weights + _PRIOR * np.median(errors)) / (weights.sum(axis=0) + _PRIOR)
        novelty = 1 - np.minimum(1.0, weights.max(axis=0))
        self._predicted, self._ranking = self._estimates + correction - _EXPLORATION_BONUS * novelty, ()

    def _near(self, known: Sequence[int]) -> _Array:
        """Return how near every config is to those known [known, configs]: 1 where they are the same, 0 far away.

        It is kept, and added up axis by axis, because the loop that feeds the GPUs waits for it.
        """
        if new := [index for index in known if index not in self._nearness]:
            distances = np.zeros((len(new), len(self._configs)), dtype=np.float32)
            for axis in self._points.T.astype(np.float32):
                distances += np.abs(axis[new][:, None] - axis)
            self._nearness.update(zip(new, np.exp(-distances), strict=True))
        return np.array([self._nearness[index] for index in known], dtype=np.float64)


def _coordinates(configs: Sequence[Config]) -> _Array:
    """Return coordinates [configs, axes]: log2 of numbers; different kernels, words and booleans lie 1 apart."""
    axes = sorted({name for config in configs for name in config})
    words = {"", *(str(value) for config in configs for value in config.values()), *(c.kernel for c in configs)}
    order = {word: number for number, word in enumerate(sorted(words))}
    points = np.zeros((len(configs), len(axes) + len(order)))
    for row, config in enumerate(configs):
        points[row, len(axes) + order[config.kernel]] = 0.5
        for name, value in config.pairs:
            if isinstance(value, int) and not isinstance(value, bool):
                points[row, axes.index(name)] = _AXIS_WEIGHTS.get(name, 1.0) * math.log2(max(1, value))
            else:
                points[row, len(axes) + order[str(value)]] += 0.5
    return points[:, np.ptp(points, axis=0) > 0]


RACE = Strategy("race", Race, drop=(1.1, 1.05), finalists=2, margin=1.015, rounds=15, revisits=False)
