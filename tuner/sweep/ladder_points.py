"""Points of a ladder: Ms that were measured, and the ranges that their winners serve."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import ESTIMATED, MEASURED, Ladder, Range
from tuner.store.records import Winner
from tuner.sweep.finals import TIE

MAX_LOSS = 0.03
"""The largest loss tolerated between two measured Ms: 0.03 lets the config that serves the Ms between them be 3% slower
than the winner at either end."""
MAX_RISE = 0.1
"""The largest rise in time between two measured Ms (0.1 = 10%) for which the Ms between them are not probed.

The higher M's time is counted with the loss of the config that serves the Ms between. These cannot lose more than the
rise, as long as no config takes less time for more rows.
"""
TILE = 16
"""The rows of a tile that most kernels have in some config: the first anchor, and the smallest step of probes."""

Estimate = Callable[[Config, Problem], float | None]
"""Microseconds that the cost model gives a config; None where it has no model, infinity where it cannot run."""


@dataclass(slots=True)
class Points:
    """What was measured at the Ms of one ladder.

    Attributes:
        ladder: the Ms to serve.
        estimate: see Estimate.
        winners: by M, the winner of each point.
    """

    ladder: Ladder
    estimate: Estimate
    winners: dict[int, Winner] = field(default_factory=dict)
    _times: dict[int, Mapping[Config, float]] = field(default_factory=dict)
    """By M of a point, microseconds of each config that was measured there."""
    _failed: dict[int, frozenset[Config]] = field(default_factory=dict)
    """By M, point or not, the configs that failed there."""

    @property
    def measured(self) -> set[int]:
        """The Ms at which anything was tried, points and others."""
        return {*self._failed}

    def add(self, m: int, winner: Winner, times_us: Mapping[Config, float]) -> None:
        """Make an M a point.

        Args:
            m: the M.
            winner: its winner.
            times_us: microseconds of each config that was measured there.
        """
        self.winners[m], self._times[m] = winner, times_us

    def add_failures(self, m: int, failed: frozenset[Config]) -> None:
        """Take note of the configs that failed at an M, be it a point or not."""
        self._failed[m] = self._failed.get(m, frozenset()) | failed

    def won_beside(self, m: int) -> tuple[Config, ...]:
        """Return the winners of the nearest points below and above an M."""
        below = max((point for point in self.winners if point < m), default=None)
        above = min((point for point in self.winners if point > m), default=None)
        return tuple(dict.fromkeys(self.winners[at].config for at in (below, above) if at is not None))

    def undecided(self) -> list[tuple[int, int]]:
        """Return the pairs of neighbouring points between which what serves may lose much."""
        return [
            (low, high)
            for low, high in pairwise(sorted(self.winners))
            if high > low + 1 and (high > TILE or self._between(low, high)[0] is None) and self._may_lose(low, high)
        ]

    def _may_lose(self, low: int, high: int) -> bool:
        loss = self._between(low, high)[1]
        low_us, high_us = self.winners[low].median_us, self.winners[high].median_us
        return loss > MAX_LOSS or (1 + loss) * high_us > (1 + MAX_RISE) * low_us

    def _between(self, low: int, high: int) -> tuple[int | None, float]:
        """Return which of two neighbouring points serves the Ms between them, and how much slower that may be.

        In general it is the higher point, for a config takes no longer for fewer rows. The exception is a tile of more
        rows than there are, which shows as a loss at the lower point. The lower point serves where its config loses
        less; as that may need another tile for one row more, its loss must be small and measured at the higher point.
        Where the higher point's config cannot run or fails, the lower point serves, and where both fail, neither does.
        """
        measured = self._same(low, high) or self.winners[low].config in self._times.get(high, {})
        high_loss, low_loss = self._loss(high, low), self._loss(low, high)
        if high_loss == math.inf:
            return (None, math.inf) if low_loss == math.inf else (low, low_loss if measured else math.inf)
        return (low, low_loss) if measured and low_loss < min(high_loss, MAX_LOSS) else (high, high_loss)

    def _loss(self, won: int, at: int) -> float:
        """Return how much slower one point's config is at another point than the winner there: 0 for no loss.

        Where it was not measured there, the model says by how much its time differs. It is infinity where the config
        failed there or at an M between, and where it cannot run beside that point: a kernel may need more rows than
        there are.
        """
        config, there = self.winners[won].config, self.winners[at]
        if self._fails(config, won, at):
            return math.inf
        if config in (there.config, *there.tied):
            return 0.0
        beside = at + 1 if at < won else at - 1
        if self.estimate(config, self.ladder.at(beside)) == math.inf:
            return math.inf
        time_us = self._times.get(at, {}).get(config)
        if time_us is None:
            here, other = (self.estimate(config, self.ladder.at(m)) for m in (won, at))
            ratio = other / here if here and other and math.inf not in (here, other) else 1.0
            time_us = self.winners[won].median_us * ratio
        best_us = self._times.get(at, {}).get(there.config, there.median_us)
        return max(0.0, time_us / best_us - 1)

    def _fails(self, config: Config, one: int, other: int) -> bool:
        """Whether a config is known to have failed from one M to another, both included."""
        low, high = sorted((one, other))
        return any(config in failed for m, failed in self._failed.items() if low <= m <= high)

    def ranges(self) -> list[Range]:
        """Return the ranges that the points found so far give, ascending; with a gap where no point's config serves."""
        ms = sorted(self.winners)
        undecided = set(self.undecided())
        ranges = [Range(ms[-1], ms[-1], ms[-1], MEASURED)]
        for low, high in reversed(list(pairwise(ms))):
            row_m = self._between(low, high)[0] if high - low > 1 else None
            if row_m is not None:
                evidence = ESTIMATED if (low, high) in undecided else MEASURED
                goes_on = self._same(row_m, ranges[0].row_m) or self._loss(ranges[0].row_m, low) <= TIE
                if row_m == high and not goes_on:  # its own M was given to the range above, with which it ties
                    ranges[0] = ranges[0]._replace(first_m=high + 1)
                    ranges.insert(0, Range(low + 1, high, high, evidence))
                else:
                    self._extend(ranges, Range(low + 1, high - 1, row_m, evidence), goes_on=goes_on)
            won, served = self.winners[low], self.winners[ranges[0].row_m].config
            goes_on = ranges[0].first_m == low + 1 and served in (won.config, *won.tied)
            self._extend(ranges, Range(low, low, low, MEASURED), goes_on=goes_on)
        ranges[0] = ranges[0]._replace(first_m=self.ladder.first_m)
        return ranges

    def _extend(self, ranges: list[Range], below: Range, *, goes_on: bool) -> None:
        """Add Ms below the first range: to it where its config serves them too, else as a range of their own."""
        if not goes_on:
            ranges.insert(0, below)
            return
        evidence = ESTIMATED if ESTIMATED in (below.evidence, ranges[0].evidence) else MEASURED
        ranges[0] = ranges[0]._replace(first_m=below.first_m, evidence=evidence)

    def _same(self, one: int, other: int) -> bool:
        return self.winners[one].config == self.winners[other].config
