"""Points of a ladder: Ms that were measured, and the ranges that their winners serve."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from itertools import pairwise

from tuner.kernel.config import Config
from tuner.problem.family import ESTIMATED, MEASURED, Ladder, Range
from tuner.store.records import Winner
from tuner.sweep.finals import TIE
from tuner.sweep.many_rows import MANY_ROWS, CorrectedModel, Estimate, spans
from tuner.sweep.neighbours import FARTHEST

MAX_LOSS = 0.03
"""The largest loss tolerated between two measured Ms: 0.03 lets the config that serves the Ms between them be 3% slower
than the winner at either end."""
MAX_RISE = 0.1
"""The largest rise in time between two measured Ms (0.1 = 10%) for which the Ms between them are not probed.

The higher M's time is counted with the loss of the config that serves the Ms between. These cannot lose more than the
rise, as long as no config takes less time for more rows.
"""
FROM_ABOVE = 0.02
"""How much slower the next point's config must be at points of many rows, in the mean, for any point's to serve there.

Below that the two points beside an M are the better guide, as for kernels whose best config changes seldom.
"""
OUTDONE = 0.01
"""How much longer a point's winner must take than that of a point of more rows for the latter's config to be tried."""
TILE = 16
"""The rows of a tile that most kernels have in some config: the first anchor, and the smallest step of probes."""


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
            times_us: microseconds of each config that was measured there; of a point, of some more.
        """
        self.winners[m], self._times[m] = winner, {**self._times.get(m, {}), **times_us}

    def add_failures(self, m: int, failed: frozenset[Config]) -> None:
        """Take note of the configs that failed at an M, be it a point or not."""
        self._failed[m] = self._failed.get(m, frozenset()) | failed

    def won_beside(self, m: int) -> tuple[Config, ...]:
        """Return the winners of the nearest points below and above an M."""
        below = max((point for point in self.winners if point < m), default=None)
        above = min((point for point in self.winners if point > m), default=None)
        return tuple(dict.fromkeys(self.winners[at].config for at in (below, above) if at is not None))

    def outdone(self, replayed: Set[tuple[int, Config]] = frozenset()) -> dict[int, Config]:
        """Return, by M, the winner of more rows that took less time than the point's own and was not tried there.

        Those by which a point was replayed are left out. A config seldom takes longer for fewer rows. The more of a
        ladder's points are known, the more such configs are, and a point is played before most of the others.
        """
        found: dict[int, Config] = {}
        for m, won in self.winners.items():
            above = (other for at, other in self.winners.items() if m < at <= FARTHEST * m)
            others = (other for other in above if (m, other.config) not in replayed)
            untried = [other for other in others if self._is_untried(other.config, m, other.problem.m)]
            fastest = min(untried, key=lambda other: other.median_us, default=None)
            if fastest is not None and won.median_us > (1 + OUTDONE) * fastest.median_us:
                found[m] = fastest.config
        return found

    def _is_untried(self, config: Config, m: int, won_at: int) -> bool:
        """Whether a config that won at another M can run at a point where it was not measured."""
        known = config in self._times.get(m, {}) or config in (self.winners[m].config, *self.winners[m].tied)
        return not known and not self._fails(config, m, won_at) and self.estimate(config, self.ladder.at(m)) != math.inf

    def undecided(self) -> list[tuple[int, int]]:
        """Return the pairs of neighbouring points between which what serves may lose much."""
        return [
            (low, high)
            for low, high in pairwise(sorted(self.winners))
            if high > low + self.ladder.unit
            and (high > TILE or self._between(low, high)[0] is None)
            and self._may_lose(low, high)
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
        beside = at + self.ladder.unit if at < won else at - self.ladder.unit
        if self.estimate(config, self.ladder.at(beside)) == math.inf:
            return math.inf
        over = self._over_winner(config, at)
        if over is None:
            here, other = (self.estimate(config, self.ladder.at(m)) for m in (won, at))
            ratio = other / here if here and other and math.inf not in (here, other) else 1.0
            over = self.winners[won].median_us * ratio / there.median_us
        return max(0.0, over - 1)

    def _fails(self, config: Config, one: int, other: int) -> bool:
        """Whether a config is known to have failed from one M to another, both included."""
        low, high = sorted((one, other))
        return any(config in failed for m, failed in self._failed.items() if low <= m <= high)

    def ranges(self) -> list[Range]:
        """Return the ranges that the points found so far give, ascending; with a gap where no point's config serves.

        Of many rows any point's config may serve any M where those of the points above lose much, if the cost model has
        all of them and one serves each M. Otherwise, and of fewer rows, it is one of the two points beside it.
        """
        ranges = self.beside()
        many = self._of_many_rows()
        if not many:
            return ranges
        few = [each._replace(last_m=min(each.last_m, MANY_ROWS)) for each in ranges if each.first_m <= MANY_ROWS]
        if few and few[-1].last_m == MANY_ROWS and self._same(few[-1].row_m, many[0].row_m):
            self._extend(many, few.pop(), goes_on=True)
        return [*few, *many]

    def _of_many_rows(self) -> list[Range]:
        """The ranges of many rows; none where there are no such Ms, or the points beside an M must serve it."""
        first_m, last_m = max(self.ladder.first_m, MANY_ROWS + 1), max(self.winners)
        ms = [m for m in sorted(self.winners) if m > MANY_ROWS]
        lost = [self._over_winner(self.winners[above].config, m) for m, above in pairwise(ms)]
        logs = [math.log(over) for over in lost if over is not None]
        if not logs or statistics.fmean(logs) < FROM_ABOVE:
            return []
        won: dict[Config, list[int]] = {}
        for m in ms:
            won.setdefault(self.winners[m].config, []).append(m)
        model = CorrectedModel(self.ladder, self.estimate, {config: self._times_us(config) for config in won})
        if not all(map(model.knows, won)):
            return []

        def log_us(config: Config, m: int) -> float:
            return model.log_us(config, m + -m % self.ladder.unit)

        def may_serve(config: Config, first: int, last: int) -> bool:
            around = max((m for m in ms if m <= first), default=first), min(m for m in ms if m >= last)
            return any(not any(self._fails(config, at, m) for m in around) for at in won[config])

        return [
            Range(
                *(first, last, min(won[config], key=lambda m: max(first / m, m / last))),
                self._evidence(config, first, last),
            )
            for first, last, config in spans(list(won), log_us, may_serve, first_m, last_m) or ()
        ]

    def _evidence(self, config: Config, first_m: int, last_m: int) -> str:
        """Whether a config was measured to lose little at all points among some Ms and at those beside them."""
        ms = sorted(self.winners)
        low, high = max(0, bisect_right(ms, first_m) - 1), bisect_left(ms, last_m)
        losses = {m: (self._over_winner(config, m) or math.inf) - 1 for m in ms[low : high + 1]}
        rises = (
            (1 + losses[above]) * self.winners[above].median_us / self.winners[below].median_us - 1
            for below, above in pairwise(losses)
        )
        return MEASURED if max(losses.values()) <= MAX_LOSS and max(rises, default=0.0) <= MAX_RISE else ESTIMATED

    def _times_us(self, config: Config) -> dict[int, float]:
        """Microseconds of a config by the Ms of points where it was measured, each on the scale of the winner's."""
        over = {m: self._over_winner(config, m) for m in self.winners}
        return {m: ratio * self.winners[m].median_us for m, ratio in over.items() if ratio is not None}

    def _over_winner(self, config: Config, at: int) -> float | None:
        """A config's time at a point over the winner's; None where it was not measured."""
        times, there = self._times.get(at, {}), self.winners[at]
        if config in (there.config, *there.tied):
            return 1.0
        return times[config] / times.get(there.config, there.median_us) if config in times else None

    def beside(self) -> list[Range]:
        """The ranges if each M between two points is served by one of these two."""
        ms = sorted(self.winners)
        undecided = set(self.undecided())
        ranges = [Range(ms[-1], ms[-1], ms[-1], MEASURED)]
        for low, high in reversed(list(pairwise(ms))):
            row_m = self._between(low, high)[0] if high - low > self.ladder.unit else high
            if row_m is not None and high - low > 1:
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
