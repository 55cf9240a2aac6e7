"""Tunes a family over a range of Ms: rungs first, then Ms between them, then a check at random Ms.

Each step is a problem like any other, with trials and a winner, so a run that was stopped goes on where it was. Their
winners make a `Family`: which range of Ms each winner serves (docs/search.md). A point is a
measured M, which its own winner serves.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import ESTIMATED, MEASURED, Check, Family, Ladder, Range
from tuner.store.records import DecidedFamily, Winner
from tuner.sweep.finals import TIE
from tuner.sweep.neighbours import FARTHEST
from tuner.sweep.race import PROBED, Race
from tuner.sweep.search import Search, Strategy
from tuner.sweep.search_task import SearchTask

ANCHOR_FACTOR = FARTHEST**2
"""Rungs this factor apart are raced in full; every rung between two of them can start from what one measured."""
CHECKS = 3
"""At how many random Ms the configs that serve them are compared with a short race; one M where a ladder has a range
of batches, with a random batch."""
MAX_REPAIR_ROUNDS = 2
"""How often the random checks are repeated after one of them lost more than GAP and was added as a measured M."""
MAX_PROBES = 24
"""The most Ms measured between one ladder's rungs."""
GAP = 0.03
"""The largest loss tolerated between two measured Ms: 0.03 lets the config that serves the Ms between them be 3% slower
than the winner at either end."""
RISE = 0.1
"""The largest rise in time between two measured Ms (0.1 = 10%) for which the Ms between them are not probed.

The higher M's time is counted with the loss of the config that serves the Ms between. These cannot lose more than the
rise, as long as no config takes less time for more rows.
"""
FAILED = 10.0
"""What a config that fails at an M counts for in a check there: its time over the fastest's."""
_FINEST = 128
"""Within one step of probes, an M is probed half-way between two points only if they are more than M / 128 apart."""
_TILE = 16
"""The rows of a tile that most kernels have in some config: the first anchor, and the smallest step of probes."""
_TALL_TILE = 64
"""The rows of a tile that is as tall as the tensor cores' own."""

Estimate = Callable[[Config, Problem], float | None]
"""Microseconds that the cost model gives a config; None where it has no model, infinity where it cannot run."""


def _probe(task: SearchTask) -> Search:
    return Race(task, warm_pace=PROBED)


PROBE = Strategy("probe", _probe, drop=(1.1, 1.05), finalists=3, margin=1.03, revisits=False)
"""Measures both neighbours' winners, the default, and the configs that the model ranks first."""


@dataclass(frozen=True, slots=True)
class TuningStep:
    """A problem to tune, and how.

    Attributes:
        problem: the problem.
        strategy: how it is searched; None for the sweep's own way.
        configs: configs to try first.
        in_finals: whether these configs play the finals however fast their trials were.
        warm_started: whether the search may start from what was measured of other steps of the same ladder.
    """

    problem: Problem
    strategy: Strategy | None = None
    configs: tuple[Config, ...] = ()
    in_finals: bool = False
    warm_started: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """How a step ended.

    Attributes:
        winner: the problem's winner; None without one.
        ratios: the times of the finals' contestants over the fastest's; empty where no finals were held.
        times_us: microseconds of each config whose trial is COMPLETE, those of earlier runs included.
        failed: the configs that failed their trial or the finals' check, those of earlier runs included.
    """

    winner: Winner | None
    ratios: Mapping[Config, float] = field(default_factory=dict)
    times_us: Mapping[Config, float] = field(default_factory=dict)
    failed: frozenset[Config] = frozenset()


@dataclass(slots=True)
class LadderProgress:
    """How far the work on one ladder has come.

    Attributes:
        ladder: the Ms to serve.
        estimate: see Estimate.
        known: the families of the same problem that earlier runs recorded here.
        families: what was found, once all steps have ended; none before, where no rung has a winner, and where known
            families are as new as the winners of their rungs and ranges. It is one, unless neither point's config may
            serve the Ms between two.
    """

    ladder: Ladder
    estimate: Estimate
    known: Sequence[DecidedFamily] = ()
    families: list[Family] = field(default_factory=list)
    _points: dict[int, Winner] = field(default_factory=dict)
    _times: dict[int, Mapping[Config, float]] = field(default_factory=dict)
    _failed: dict[int, frozenset[Config]] = field(default_factory=dict)
    _winnerless: set[int] = field(default_factory=set)
    _waiting: set[int] = field(default_factory=set)
    _later: list[list[int]] = field(default_factory=list)
    _probes: int = 0
    _served: dict[int, Config] = field(default_factory=dict)
    _lost: dict[int, float] = field(default_factory=dict)
    _repair_rounds: int = 0
    _is_recalled: bool = False

    @property
    def is_open(self) -> bool:
        """Whether steps that were returned have not ended."""
        return bool(self._waiting)

    def begin(self) -> list[TuningStep]:
        """Return the first steps: the anchors, each raced in full unless the ladder learns from another."""
        ms = [problem.m for problem in self.ladder.rungs]
        anchors = _anchors(ms)
        rest = [m for m in ms if m not in anchors]
        # The first row of a tile comes when the winners on both sides are known, and plays them.
        firsts = [m for m in rest if m > _TILE and m - 1 in ms]
        self._later = [[m for m in rest if m not in firsts], firsts]
        return self._wait_for(TuningStep(self.ladder.at(m), warm_started=self.ladder.taught) for m in anchors)

    def ended(
        self, m: int, result: Result, winners: Iterable[Winner], begun: Iterable[Problem] = ()
    ) -> list[TuningStep]:
        """Take note of how a step ended; return the steps that follow from it.

        Args:
            m: the step's M.
            result: how it ended.
            winners: the device's; no check is made of a problem that has one.
            begun: problems that are listed or at work: none is made of these either, whose finals the served config
                may not play.
        """
        self._waiting.discard(m)
        self._failed[m] = self._failed.get(m, frozenset()) | result.failed
        served = self._served.get(m)
        if served is not None and served in result.failed:
            self._lost[m] = FAILED
        elif served is not None and served in result.ratios:
            self._lost[m] = max(1.0, result.ratios[served])
        if result.winner is None or result.winner.config in result.failed:  # a winner of before that fails now
            self._winnerless.add(m)
        elif served is None or self._lost.get(m, 1.0) > 1 + GAP:
            self._points[m] = result.winner
            self._times[m] = result.times_us
        return [] if self._waiting else self._next({*(winner.problem for winner in winners), *begun})

    def _next(self, taken: Set[Problem]) -> list[TuningStep]:
        while self._later:
            if ms := self._later.pop(0):
                return self._wait_for(
                    TuningStep(self.ladder.at(m), None, self._won_beside(m), warm_started=True) for m in ms
                )
        if not self._is_recalled:
            self._is_recalled = True
            if ms := self._rows_of_known():
                return self._wait_for(TuningStep(self.ladder.at(m), PROBE, warm_started=True) for m in ms)
        if not self._points or self._is_known():
            return []
        if self._repair_rounds < MAX_REPAIR_ROUNDS and max(self._lost.values(), default=1.0) > 1 + GAP:
            self._repair_rounds += 1  # a check that lost much is a point now: others are drawn, after what it calls for
            self._served.clear()
            self._lost.clear()
        if not self._served and (probes := self._probes_between()):
            return self._wait_for(probes)  # their results may call for more
        if not self._served and (checks := self._checks(taken)):
            return self._wait_for(checks)
        self.families = self._serving()
        return []

    def _rows_of_known(self) -> list[int]:
        """Return the Ms whose winners serve ranges of known families, without those that are points already."""
        ms = {each.row_m for decided in self.known for each in decided.family.ranges} - self._points.keys()
        return sorted(m for m in ms if self.ladder.first_m <= m <= self.ladder.rungs[-1].m)

    def _is_known(self) -> bool:
        """Whether known families reach from the first M to the last point, with no point between two of them."""
        newest, top = max(winner.decided_at for winner in self._points.values()), max(self._points)
        known = [
            (each.family.first_m, each.family.last_m)
            for each in self.known
            if each.decided_at >= newest and each.family.batches == self.ladder.batches and each.family.last_m <= top
        ]
        first_m: int | None = self.ladder.first_m
        while first_m is not None:
            last_m = max((last for first, last in known if first == first_m), default=0)
            if last_m in (0, top):
                return last_m == top
            next_point = min(m for m in self._points if m > last_m)
            first_m = min((first for first, _ in known if last_m < first <= next_point), default=None)
        return False

    def _won_beside(self, m: int) -> tuple[Config, ...]:
        """Return the winners of the nearest points below and above an M."""
        below = max((point for point in self._points if point < m), default=None)
        above = min((point for point in self._points if point > m), default=None)
        return tuple(dict.fromkeys(self._points[at].config for at in (below, above) if at is not None))

    def _wait_for(self, steps: Iterable[TuningStep]) -> list[TuningStep]:
        awaited = list(steps)
        self._waiting |= {step.problem.m for step in awaited}
        return awaited

    def _probes_between(self) -> list[TuningStep]:
        """Return a step between neighbouring points of which neither may serve the Ms between, the widest first."""
        widest = sorted(self._undecided(), key=lambda pair: pair[0] / pair[1])
        middles = (_middle(*pair) for pair in widest)
        between = [m for m in middles if m is not None and m not in self._winnerless][: MAX_PROBES - self._probes]
        self._probes += len(between)
        return [TuningStep(self.ladder.at(m), PROBE, self._won_beside(m), warm_started=True) for m in between]

    def _undecided(self) -> list[tuple[int, int]]:
        return [
            (low, high)
            for low, high in pairwise(sorted(self._points))
            if high > low + 1 and (high > _TILE or self._between(low, high)[0] is None) and self._may_lose(low, high)
        ]

    def _may_lose(self, low: int, high: int) -> bool:
        loss = self._between(low, high)[1]
        return loss > GAP or (1 + loss) * self._points[high].median_us > (1 + RISE) * self._points[low].median_us

    def _between(self, low: int, high: int) -> tuple[int | None, float]:
        """Return which of two neighbouring points serves the Ms between them, and how much slower that may be.

        In general it is the higher point, for a config takes no longer for fewer rows. The exception is a tile of more
        rows than there are, which shows as a loss at the lower point. The lower point serves where its config loses
        less; as that may need another tile for one row more, its loss must be small and measured at the higher point.
        Where the higher point's config cannot run or fails, the lower point serves, and where both fail, neither does.
        """
        measured = self._same(low, high) or self._points[low].config in self._times.get(high, {})
        high_loss, low_loss = self._loss(high, low), self._loss(low, high)
        if high_loss == math.inf:
            return (None, math.inf) if low_loss == math.inf else (low, low_loss if measured else math.inf)
        return (low, low_loss) if measured and low_loss < min(high_loss, GAP) else (high, high_loss)

    def _loss(self, won: int, at: int) -> float:
        """Return how much slower one point's config is at another point than the winner there: 0 for no loss.

        Where it was not measured there, the model says by how much its time differs. It is infinity where the config
        failed there or at an M between, and where it cannot run beside that point: a kernel may need more rows than
        there are.
        """
        config, there = self._points[won].config, self._points[at]
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
            time_us = self._points[won].median_us * ratio
        best_us = self._times.get(at, {}).get(there.config, there.median_us)
        return max(0.0, time_us / best_us - 1)

    def _fails(self, config: Config, one: int, other: int) -> bool:
        """Whether a config is known to have failed from one M to another, both included."""
        low, high = sorted((one, other))
        return any(config in failed for m, failed in self._failed.items() if low <= m <= high)

    def _serving(self) -> list[Family]:
        """Return a family for each run of ranges without a gap."""
        runs: list[list[Range]] = []
        for each in self.ranges():
            if runs and runs[-1][-1].last_m + 1 == each.first_m:
                runs[-1].append(each)
            else:
                runs.append([each])
        return [
            Family(self.ladder.family, tuple(run), self._check(run[0].first_m, run[-1].last_m), self.ladder.batches)
            for run in runs
        ]

    def ranges(self) -> list[Range]:
        """Return the ranges that the points found so far give, ascending; with a gap where no point's config serves."""
        ms = sorted(self._points)
        undecided = set(self._undecided())
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
            won, served = self._points[low], self._points[ranges[0].row_m].config
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
        return self._points[one].config == self._points[other].config

    def _checks(self, taken: Set[Problem]) -> list[TuningStep]:
        """Return steps at random Ms and batches that are not taken, each with the config that the ranges give it."""
        ranges = self.ranges()
        draw, batches = random.Random(str(self.ladder)), self.ladder.batches
        first, last = ranges[0].first_m, ranges[-1].last_m
        steps: list[TuningStep] = []
        for _ in range(10 * CHECKS):
            m = draw.randint(first, last)
            problem = self.ladder.at(m, batches and draw.randint(*batches))
            wanted = len(steps) < (CHECKS if batches is None else 1)
            serving = next((each for each in ranges if each.first_m <= m <= each.last_m), None)
            if wanted and serving is not None and problem not in taken and m not in (*self._failed, *self._served):
                self._served[m] = config = self._points[serving.row_m].config
                steps.append(TuningStep(problem, None, (config,), in_finals=True, warm_started=True))
        return steps

    def _check(self, first_m: int, last_m: int) -> Check | None:
        lost = [ratio for m, ratio in self._lost.items() if first_m <= m <= last_m]
        if not lost:
            return None
        return Check(len(lost), statistics.geometric_mean(lost), max(lost))


def _anchors(ms: Sequence[int]) -> list[int]:
    """Return the rungs to race in full: both ends, and powers of ANCHOR_FACTOR from one tile on."""
    wanted = {_TILE * ANCHOR_FACTOR**power for power in range(14)}
    return [m for m in ms if m in wanted or m in (ms[0], ms[-1])]


def _middle(low: int, high: int) -> int | None:
    """Return an M between two: the first row after a tall tile, or else a multiple of a tile's rows about half-way.

    Where configs change between two such points they mostly change with that row, so it alone decides most ranges. From
    1024 on a step is a 32nd to a 64th of M. Within one step it is the first row of the higher tile, or what lies
    half-way: a tile of more rows than there are takes longer the fewer they are, so that configs change at any row.
    Returns None where points are as close as borders are sought.
    """
    if low % _TALL_TILE == 0 and low + 1 < high:
        return low + 1
    step = max(_TILE, 1 << max(0, high.bit_length() - 6))
    middle = math.ceil((low + high) / 2 / step) * step
    if not low < middle < high:
        middle -= step
    if low < middle < high:
        return middle
    if low % step == 0 and low + 1 < high:
        return low + 1
    return (low + high) // 2 if high - low > max(1, high // _FINEST) else None
