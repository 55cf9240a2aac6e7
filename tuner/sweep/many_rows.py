"""Of many rows: which Ms each winner of a ladder serves, whether its own M is among them or not.

Each wave of tiles is a step in a config's time. So with more rows the fastest config changes many times between two
measured Ms, and back again: one that won at 2,048 rows may be the best for 700. The cost model tells which it is, once
it is corrected by what the configs took where they were measured (docs/decisions.md, 169).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import Ladder
from tuner.sweep.neighbours import FARTHEST

MANY_ROWS = 256
"""Up to so many rows the Ms between two points are served by one of these two."""
_STEP = 8
"""The rows by which tiles of any height differ."""
_SWITCH = 0.003
"""What one more range must save: 0.003 is 0.3% of the time over a sixteenth of an octave."""
_NEAR = 0.5
"""Ms that are closer than about this in log M tell nearly as much about a config as the M itself."""

Estimate = Callable[[Config, Problem], float | None]
"""Microseconds that the cost model gives a config; None where it has no model, infinity where it cannot run."""


class Span(NamedTuple):
    """The Ms that one config serves, both ends included."""

    first_m: int
    last_m: int
    config: Config


class CorrectedModel:
    """The cost model at the Ms of one ladder, corrected by what configs took at those where they were measured."""

    def __init__(self, ladder: Ladder, estimate: Estimate, measured_us: Mapping[Config, Mapping[int, float]]) -> None:
        """Take each config's microseconds by M, all under one protocol."""
        self._ladder, self._estimate = ladder, estimate
        self._logs = {config: {m: math.log(us) for m, us in times.items()} for config, times in measured_us.items()}
        self._errors = {config: self._errors_of(config, logs) for config, logs in self._logs.items()}

    def knows(self, config: Config) -> bool:
        """Whether there is a model of a config that was measured."""
        return bool(self._errors.get(config))

    def log_us(self, config: Config, m: int) -> float:
        """The natural logarithm of the microseconds of a config that it knows.

        It is no less than at any fewer rows where the config was measured, and no more than at any more rows. It is
        infinity where the config cannot run, and for Ms far from all at which it was measured: of so many more or fewer
        rows the model was up to 65% too low.
        """
        errors, logs = self._errors[config], self._logs[config]
        is_near = any(m <= FARTHEST * at and at <= FARTHEST * m for at in errors)
        estimate = self._log_estimate(config, m) if is_near else math.inf
        if estimate == math.inf:
            return math.inf
        weights = {at: 1 / (abs(math.log(m / at)) + _NEAR) for at in errors}
        corrected = estimate + sum(weight * errors[at] for at, weight in weights.items()) / sum(weights.values())
        least = max((log for at, log in logs.items() if at <= m), default=-math.inf)
        most = min((log for at, log in logs.items() if at >= m), default=math.inf)
        return max(least, min(most, corrected))

    def _errors_of(self, config: Config, logs: Mapping[int, float]) -> dict[int, float]:
        estimates = {m: self._log_estimate(config, m) for m in logs}
        return {m: log - estimates[m] for m, log in logs.items() if estimates[m] < math.inf}

    def _log_estimate(self, config: Config, m: int) -> float:
        return math.log(self._estimate(config, self._ladder.at(m)) or math.inf)


def spans(
    configs: Sequence[Config],
    log_us: Callable[[Config, int], float],
    may_serve: Callable[[Config, int, int], bool],
    first_m: int,
    last_m: int,
) -> list[Span] | None:
    """Return which config serves which Ms of a range, ascending, so that least is lost with few of them.

    Args:
        configs: the configs to choose from, at least one.
        log_us: the natural logarithm of a config's microseconds at an M, infinity where it cannot run.
        may_serve: whether a config may serve the Ms from one to another.
        first_m, last_m: the range, both included.

    Returns:
        The spans; None where no config serves some M.
    """
    steps = list(_steps(first_m, last_m))
    ends = np.array([[log_us(config, m) for m in (first_m, *(last for _, last in steps))] for config in configs])
    barred = np.isinf(ends[:, :-1])  # it may begin to run within a step
    barred |= [[not may_serve(config, first, last) for first, last in steps] for config in configs]
    logs = np.where(barred, np.inf, ends[:, 1:])
    if np.isinf(logs.min(axis=0)).any():
        return None
    widths = np.array([math.log((last + 1) / first) for first, last in steps]) / math.log(17 / 16)
    losses = (logs - logs.min(axis=0)) * widths
    sums, came = losses[:, 0], list[np.ndarray]()
    for loss in losses.T[1:]:  # the least that serving all Ms so far has lost, by the config that serves the last
        cheapest = sums.argmin()
        stays = sums <= sums[cheapest] + _SWITCH
        came.append(np.where(stays, np.arange(len(configs)), cheapest))
        sums = np.where(stays, sums, sums[cheapest] + _SWITCH) + loss
    chosen = [int(sums.argmin())]
    for before in reversed(came):
        chosen.append(int(before[chosen[-1]]))
    found = list[Span]()
    for (first, last), place in zip(steps, reversed(chosen), strict=True):
        if found and found[-1].config == configs[place]:
            found[-1] = found[-1]._replace(last_m=last)
        else:
            found.append(Span(first, last, configs[place]))
    return found


def _steps(first_m: int, last_m: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last M of parts of a range: from 1024 on of a 64th to a 128th of M."""
    while first_m <= last_m:
        step = max(_STEP, 1 << max(0, first_m.bit_length() - 7))
        last = min(last_m, math.ceil(first_m / step) * step)
        yield first_m, last
        first_m = last + 1
