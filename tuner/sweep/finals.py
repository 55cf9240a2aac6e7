"""The finals of protocol 1: paired rounds, a bootstrap interval, ties broken in a written order."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

TIE = 0.005
"""Paired medians closer than this are a tie: one config's paired ratio moves by 0.4-0.5% between processes (H200)."""
ROUNDS = 30
MAX_ROUNDS = 60
_RESAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class Standing:
    """One contestant against the fastest.

    Attributes:
        ratio: its time over the fastest one's: median of the paired log ratios, as a factor.
        low, high: bootstrap 95% interval of the ratio.
        median_us: median of its own times.
    """

    ratio: float
    low: float
    high: float
    median_us: float

    @property
    def undecided(self) -> bool:
        """Whether the interval lies on both sides of the tie's edge."""
        return self.low < 1 + TIE < self.high


def play(
    contestants: Sequence[str],
    fire: Callable[[Sequence[str]], Sequence[float]],
    *,
    seed: int,
    flagged: Callable[[], bool] = lambda: False,
    rounds: int = ROUNDS,
    max_rounds: int = MAX_ROUNDS,
) -> dict[str, list[float]]:
    """Run the contestants together, round after round, in an order shuffled each round.

    Args:
        contestants: their names.
        fire: runs the named contestants in the order given; microseconds a call for each.
        seed: of the shuffles.
        flagged: whether the card was throttled during the last round; such a round is repeated, within `max_rounds`.
        rounds: rounds to play; played on to `max_rounds` while someone's interval straddles the tie's edge.

    Returns:
        Times of each contestant, one a counted round.
    """
    shuffler = random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    counted = 0
    for played in range(1, max_rounds + 1):
        order = list(contestants)
        shuffler.shuffle(order)
        figures = dict(zip(order, fire(order), strict=True))
        # The last `rounds` tries always count: better throttled figures, paired as they are, than none.
        if flagged() and max_rounds - played >= rounds - counted:
            continue
        counted += 1
        for name, figure in figures.items():
            times[name].append(figure)
        if counted >= rounds and (counted - rounds) % 10 == 0 and not _straddling(times):
            break
    return times


def standings(times: Mapping[str, Sequence[float]]) -> dict[str, Standing]:
    """Each contestant against the fastest by median, from paired rounds.

    Args:
        times: equally many figures a contestant, microseconds, the i-th of all from one round.
    """
    medians = {name: float(np.median(figures)) for name, figures in times.items()}
    fastest = min(medians, key=lambda name: (medians[name], name))
    base = np.log(np.asarray(times[fastest]))
    picker = np.random.default_rng(0)
    picks = picker.integers(0, len(base), size=(_RESAMPLES, len(base)))
    found: dict[str, Standing] = {}
    for name, figures in times.items():
        logs = np.log(np.asarray(figures)) - base
        low, high = np.percentile(np.median(logs[picks], axis=1), [2.5, 97.5])
        found[name] = Standing(
            math.exp(float(np.median(logs))), math.exp(float(low)), math.exp(float(high)), medians[name]
        )
    return found


def ties(table: Mapping[str, Standing]) -> list[str]:
    """Contestants within `TIE` of the fastest."""
    return [name for name, standing in table.items() if standing.ratio <= 1 + TIE]


def _straddling(times: Mapping[str, Sequence[float]]) -> bool:
    return any(standing.undecided for standing in standings(times).values())
