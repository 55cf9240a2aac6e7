"""The finals of protocol 1: paired rounds, a bootstrap interval, ties broken in a written order."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TIE = 0.005
"""Paired medians closer than this are a tie: one config's paired ratio moves by about as much between processes."""
_SLIGHT = 0.01
"""Who is slower by less than this for certain may count as a tie or not: that is worth no more rounds."""
_STEP = 10
_RESAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """One contestant against another.

    Attributes:
        ratio: its time over the other's: median of the paired log ratios, as a factor.
        low, high: bootstrap 95% interval of the ratio.
        median_us: median of its own times.
    """

    ratio: float
    low: float
    high: float
    median_us: float

    @property
    def undecided(self) -> bool:
        """Whether the interval lies on both sides of the tie's edge, and so far out that it matters."""
        return self.low < 1 + TIE and self.high >= 1 + _SLIGHT


def play(
    contestants: Sequence[str],
    fire: Callable[[Sequence[str]], Sequence[float]],
    *,
    seed: int,
    rounds: int,
    max_rounds: int,
    beside: Sequence[str] = (),
    flagged: Callable[[], bool] = lambda: False,
) -> dict[str, list[float]]:
    """Run the contestants together, round after round, in an order shuffled each round.

    After `rounds` those that are clearly slower leave; the others play on, `max_rounds` at most, while somebody's
    interval straddles the edge of a tie and reaches beyond 1%.

    Args:
        contestants: their names.
        fire: runs the named contestants in the order given; microseconds a call for each.
        seed: of the shuffles.
        rounds: rounds that everybody plays.
        max_rounds: rounds that anybody plays.
        beside: contestants that are only there to be compared with: they decide nothing.
        flagged: whether the card was throttled during the last round; such a round is repeated, `rounds` times at most.

    Returns:
        Times of each contestant, one a counted round; the i-th of all are from one round.
    """
    shuffler = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    playing = list(contestants)
    counted = repeated = 0
    while counted < max_rounds and playing:
        order = shuffler.sample(playing, len(playing))
        figures = dict(zip(order, fire(order), strict=True))
        # Better throttled figures, paired as they are, than none: repeats have an end.
        if flagged() and repeated < rounds:
            repeated += 1
            continue
        counted += 1
        for name, figure in figures.items():
            times[name].append(figure)
        if counted >= rounds and (counted - rounds) % _STEP == 0:
            playing = _undecided({name: times[name] for name in playing if name not in beside})
    return times


def standings(times: Mapping[str, Sequence[float]]) -> dict[str, Standing]:
    """Each contestant against the fastest by median, from the rounds that both played.

    Args:
        times: of each contestant, microseconds, the i-th of all from one round; those that left early have fewer.
    """
    medians = {name: float(np.median(figures)) for name, figures in times.items()}
    longest = max(len(figures) for figures in times.values())
    # Among those that played to the end: a shorter list's median is of other rounds.
    fastest = min((name for name in times if len(times[name]) == longest), key=lambda name: (medians[name], name))
    return {name: standing(figures, times[fastest]) for name, figures in times.items()}


def standing(figures: Sequence[float], base: Sequence[float]) -> Standing:
    """One contestant against another, from the rounds that both played.

    Args:
        figures: its times, microseconds.
        base: the other's, the i-th of both from one round.
    """
    logs = paired_logs(figures, base)
    picks = np.random.default_rng(0).integers(0, len(logs), size=(_RESAMPLES, len(logs)))
    low, high = np.percentile(np.median(logs[picks], axis=1), [2.5, 97.5])
    middle = float(np.median(logs))
    return Standing(math.exp(middle), math.exp(float(low)), math.exp(float(high)), float(np.median(figures)))


def paired_logs(figures: Sequence[float], base: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Log ratios of two contestants' times, round by round, over the rounds that both played."""
    shared = min(len(figures), len(base))
    ratios: np.ndarray[Any, np.dtype[np.float64]] = np.log(np.asarray(figures[:shared]) / np.asarray(base[:shared]))
    return ratios


def ratio(figures: Sequence[float], base: Sequence[float]) -> float:
    """One contestant's time over another's: the median of their paired log ratios, as a factor."""
    return math.exp(float(np.median(paired_logs(figures, base))))


def ties(table: Mapping[str, Standing]) -> list[str]:
    """Contestants within `TIE` of the fastest."""
    return [name for name, standing in table.items() if standing.ratio <= 1 + TIE]


def _undecided(times: Mapping[str, Sequence[float]]) -> list[str]:
    """Who plays on: everybody that may still be a tie, if for one of them that is not clear yet."""
    if not times:
        return []
    table = standings(times)
    if not any(standing.undecided for standing in table.values()):
        return []
    return [name for name, standing in table.items() if standing.low < 1 + TIE]
