"""The finals of protocol 1: paired rounds, bootstrap intervals, and ties.

A contestant's figures are microseconds a call. The i-th of all contestants come from the same round; those of one that
left early are fewer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TIE = 0.005
"""Paired medians closer than this are a tie: one config's ratio varies by about as much between processes."""
CLOSE = 0.002
"""Of what is this close to the fastest the simplest config wins, and rounds go on until it is known who that may be.

Source: benchmarks/results/races.json, where the simplest of all ties is slower, and search-replay-h200.json with its
history, where the winners of two races agreed less often by it.
"""
_SLIGHT = 0.01
"""More rounds are not worth it to decide whether a contestant that is at most this much slower may win."""
_STEP = 10
_RESAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """One contestant's time over another's.

    Attributes:
        ratio: the median of the paired log ratios, as a factor.
        low, high: the bootstrap 95% interval of the ratio.
        median_us: the median of the contestant's own times.
    """

    ratio: float
    low: float
    high: float
    median_us: float

    @property
    def undecided(self) -> bool:
        """Whether the interval contains what may win and reaches far enough beyond it to matter."""
        return self.low < 1 + CLOSE and self.high >= 1 + _SLIGHT


def play(
    contestants: Sequence[str],
    replay: Callable[[Sequence[str]], Sequence[float]],
    *,
    seed: int,
    rounds: int,
    max_rounds: int,
    beside: Sequence[str] = (),
    throttled: Callable[[], bool] = lambda: False,
) -> dict[str, list[float]]:
    """Run the contestants together, round after round, in an order shuffled each round.

    After `rounds`, those that are clearly slower leave. The others go on to at most `max_rounds`, while the interval of
    any of them begins within `CLOSE` of the fastest and reaches beyond 1%.

    Args:
        contestants: their names.
        replay: runs the named contestants in the order given and returns microseconds a call for each.
        seed: seeds the shuffles.
        rounds: how many rounds every contestant plays.
        max_rounds: the most rounds that any contestant plays.
        beside: contestants that are only there for comparison, and decide nothing.
        throttled: whether the GPU was slowed during the last round. Such rounds are repeated, at most `rounds` times.

    Returns:
        The times of each contestant, one for each counted round; the i-th of all come from the same round.
    """
    shuffler = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    playing = list(contestants)
    counted = repeated = 0
    while counted < max_rounds and playing:
        order = shuffler.sample(playing, len(playing))
        figures = dict(zip(order, replay(order), strict=True))
        # After too many repeats, throttled figures are counted: they are paired, and better than none.
        if throttled() and repeated < rounds:
            repeated += 1
            continue
        counted += 1
        for name, figure in figures.items():
            times[name].append(figure)
        if counted >= rounds and (counted - rounds) % _STEP == 0:
            playing = _undecided({name: times[name] for name in playing if name not in beside})
    return times


def compare_to_fastest(times: Mapping[str, Sequence[float]]) -> dict[str, PairedRatio]:
    """Compare each contestant with the fastest by median, over the rounds that both played."""
    medians = {name: float(np.median(figures)) for name, figures in times.items()}
    longest = max(len(figures) for figures in times.values())
    # The fastest is one that played to the end, since a shorter list's median comes from other rounds.
    fastest = min((name for name in times if len(times[name]) == longest), key=lambda name: (medians[name], name))
    return {name: compare(figures, times[fastest]) for name, figures in times.items()}


def compare(figures: Sequence[float], base: Sequence[float]) -> PairedRatio:
    """Compare one contestant with another, over the rounds that both played."""
    logs = paired_logs(figures, base)
    picks = np.random.default_rng(0).integers(0, len(logs), size=(_RESAMPLES, len(logs)))
    low, high = np.percentile(np.median(logs[picks], axis=1), [2.5, 97.5])
    middle = float(np.median(logs))
    return PairedRatio(math.exp(middle), math.exp(float(low)), math.exp(float(high)), float(np.median(figures)))


def paired_logs(figures: Sequence[float], base: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the log ratios of two contestants' times, round by round, over the rounds that both played."""
    shared = min(len(figures), len(base))
    ratios: np.ndarray[Any, np.dtype[np.float64]] = np.log(np.asarray(figures[:shared]) / np.asarray(base[:shared]))
    return ratios


def ratio(figures: Sequence[float], base: Sequence[float]) -> float:
    """Return one contestant's time over another's: the median of their paired log ratios, as a factor."""
    return math.exp(float(np.median(paired_logs(figures, base))))


def ties(table: Mapping[str, PairedRatio]) -> list[str]:
    """Return the contestants within `TIE` of the fastest."""
    return [name for name, paired in table.items() if paired.ratio <= 1 + TIE]


def _undecided(times: Mapping[str, Sequence[float]]) -> list[str]:
    """Return everybody that may still win, if that is not clear yet for at least one of them."""
    if not times:
        return []
    table = compare_to_fastest(times)
    if not any(paired.undecided for paired in table.values()):
        return []
    return [name for name, paired in table.items() if paired.low < 1 + CLOSE]
