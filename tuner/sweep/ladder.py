"""Tunes a family over a range of Ms: rungs first, then Ms between them, then a check at random Ms.

Before the check, points at which a config of more rows may be faster than what won are played again with that one.

Each step is a problem like any other, with trials and a winner, so a run that was stopped goes on where it was. Their
winners make a `Family`: which range of Ms each winner serves (docs/search.md, ladder_points.py).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import InitVar, dataclass, field

from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import Check, Family, Ladder, ms_within, runs
from tuner.store.records import DecidedFamily, Winner
from tuner.sweep.ladder_points import MAX_LOSS, TILE, Points
from tuner.sweep.many_rows import MANY_ROWS, Estimate
from tuner.sweep.neighbours import FARTHEST
from tuner.sweep.race import PROBED, RACE, Race
from tuner.sweep.search import Search, Strategy
from tuner.sweep.search_task import SearchTask

ANCHOR_FACTOR = FARTHEST**2
"""Rungs this factor apart are raced in full; every rung between two of them can start from what one measured."""
CHECKS = 3
"""At how many random Ms the configs that serve them are compared with a short race; one M where a ladder has a range
of batches, with a random batch."""
MAX_REPAIR_ROUNDS = 2
"""How often the random checks are repeated after one of them lost more than MAX_LOSS and was added as a measured M."""
MAX_PROBES = 24
"""The most Ms measured between one ladder's rungs."""
FAILED = 10.0
"""What a config that fails at an M counts for in a check there: its time over the fastest's."""
_FINEST = 128
"""Within one step of probes, an M is probed half-way between two points only if they are more than M / 128 apart."""
_TALL_TILE = 64
"""The rows of a tile that is as tall as the tensor cores' own, whose first row is probed, but not of many rows: there
tiles of any height are the fastest, which change anywhere (docs/decisions.md, 168)."""


def _probe(task: SearchTask) -> Search:
    return Race(task, warm_pace=PROBED)


PROBE = Strategy("probe", _probe, drop=(1.1, 1.05), finalists=3, margin=1.03, rounds=RACE.rounds, revisits=False)
"""Measures both neighbours' winners, the default, and the configs that the model ranks first."""


@dataclass(frozen=True, slots=True)
class TuningStep:
    """A problem to tune, and how.

    Attributes:
        problem: the problem.
        strategy: how it is searched; None for the sweep's own way.
        configs: configs to try first.
        in_finals: whether these configs play the finals however fast their trials were, also of a problem that has a
            winner if one of them was not tried.
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
    estimate: InitVar[Estimate]
    known: Sequence[DecidedFamily] = ()
    families: list[Family] = field(default_factory=list)
    _points: Points = field(init=False)
    _winnerless: set[int] = field(default_factory=set)
    _waiting: set[int] = field(default_factory=set)
    """The Ms of steps that were returned and have not ended."""
    _later: list[list[int]] = field(default_factory=list)
    """The Ms of the rungs still to come, in groups: each begins when the one before has ended."""
    _probes: int = 0
    """How many Ms were measured between the rungs."""
    _replayed: set[tuple[int, Config]] = field(default_factory=set)
    """By M, the configs of more rows with which points were played again."""
    _checked: dict[int, Config] = field(default_factory=dict)
    """By random M, the config that the ranges give it."""
    _check_ratios: dict[int, float] = field(default_factory=dict)
    """By random M, that config's time over the fastest's, for checks that have ended: at least 1."""
    _repair_rounds: int = 0
    _is_recalled: bool = False
    """Whether the Ms that earlier runs measured were returned as steps."""

    def __post_init__(self, estimate: Estimate) -> None:
        """Begin without a point."""
        self._points = Points(self.ladder, estimate)

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
        firsts = [m for m in rest if m > TILE and m - 1 in ms]
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
            begun: problems that are listed or at work: no check is made of these either, for the config that serves
                them may not be in their finals.
        """
        self._waiting.discard(m)
        self._points.add_failures(m, result.failed)
        checked = self._checked.get(m)
        if checked is not None and checked in result.failed:
            self._check_ratios[m] = FAILED
        elif checked is not None and checked in result.ratios:
            self._check_ratios[m] = max(1.0, result.ratios[checked])
        if result.winner is None or result.winner.config in result.failed:  # a winner of before that fails now
            self._winnerless.add(m)
            self._points.winners.pop(m, None)
        elif result.winner.problem == self.ladder.at(m) and (
            checked is None or self._check_ratios.get(m, 1.0) > 1 + MAX_LOSS
        ):
            self._points.add(m, result.winner, result.times_us)
        return [] if self._waiting else self._next({winner.problem for winner in winners}, set(begun))

    def _next(self, won: Set[Problem], begun: Set[Problem]) -> list[TuningStep]:
        while self._later:
            if ms := self._later.pop(0):
                return self._wait_for(
                    TuningStep(self.ladder.at(m), None, self._points.won_beside(m), warm_started=True) for m in ms
                )
        if not self._is_recalled:
            self._is_recalled = True
            if ms := self._measured_before(won):
                return self._wait_for(TuningStep(self.ladder.at(m), PROBE, warm_started=True) for m in ms)
        if not self._points.winners or self._is_known():
            return []
        repairs = self._repairs()
        if not self._checked and (probes := repairs or self._probes_between() or self._replays()):
            return self._wait_for(probes)  # their results may call for more
        if not self._checked and (checks := self._checks(won | begun)):
            return self._wait_for(checks)
        self.families = self._serving()
        return []

    def _repairs(self) -> list[TuningStep]:
        """Forget the checks if one lost much, so that others are drawn; return the steps that make such Ms points.

        A check of the ladder's own batch is a point already. One of another batch is none of this ladder, so that its M
        is measured at the ladder's own.
        """
        lost_much = [m for m, ratio in self._check_ratios.items() if ratio > 1 + MAX_LOSS]
        if not lost_much or self._repair_rounds == MAX_REPAIR_ROUNDS:
            return []
        self._repair_rounds += 1
        self._checked.clear()
        self._check_ratios.clear()
        return [self._probe_at(m) for m in lost_much if m not in self._points.winners and m not in self._winnerless]

    def _measured_before(self, won: Set[Problem]) -> list[int]:
        """Return the Ms that earlier runs measured, if they left a family, without those that are points already."""
        if not self.known:
            return []
        ms = {each.m for each in won if each.group() == self.ladder.family} - self._points.winners.keys()
        return sorted(m for m in ms if self.ladder.first_m <= m <= self.ladder.last_m and m % self.ladder.unit == 0)

    def _is_known(self) -> bool:
        """Whether known families reach from the first M to the last point, with no point between two of them."""
        newest, top = max(winner.decided_at for winner in self._points.winners.values()), max(self._points.winners)
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
            next_point = min(m for m in self._points.winners if m > last_m)
            first_m = min((first for first, _ in known if last_m < first <= next_point), default=None)
        return False

    def _wait_for(self, steps: Iterable[TuningStep]) -> list[TuningStep]:
        awaited = list(steps)
        self._waiting |= {step.problem.m for step in awaited}
        return awaited

    def _probes_between(self) -> list[TuningStep]:
        """Return a step between neighbouring points of which neither may serve the Ms between, the widest first."""
        widest = sorted(self._points.undecided(), key=lambda pair: pair[0] / pair[1])
        middles = (_middle(*pair, self.ladder.unit) for pair in widest)
        between = [m for m in middles if m is not None and m not in self._winnerless][: MAX_PROBES - self._probes]
        self._probes += len(between)
        return [self._probe_at(m) for m in between]

    def _replays(self) -> list[TuningStep]:
        """Return a step for each point that is slower than one of more rows, with what won at both."""
        outdone = self._points.outdone(self._replayed).items()
        self._replayed.update(outdone)
        return [
            TuningStep(self.ladder.at(m), PROBE, (self._points.winners[m].config, config), True, warm_started=True)
            for m, config in outdone
        ]

    def _probe_at(self, m: int) -> TuningStep:
        return TuningStep(self.ladder.at(m), PROBE, self._points.won_beside(m), warm_started=True)

    def _serving(self) -> list[Family]:
        """Return a family for each run of ranges without a gap."""
        return [
            Family(self.ladder.family, tuple(run), self._check(run[0].first_m, run[-1].last_m), self.ladder.batches)
            for run in runs(self._points.ranges())
        ]

    def _checks(self, taken: Set[Problem]) -> list[TuningStep]:
        """Return steps at random Ms and batches that are not taken, each with the config that the ranges give it."""
        ranges = self._points.ranges()
        draw, batches = random.Random(str(self.ladder)), self.ladder.batches
        ms = ms_within(self.ladder.family, ranges[0].first_m, ranges[-1].last_m)
        wanted = CHECKS if batches is None else 1
        steps: list[TuningStep] = []
        for _ in range(10 * CHECKS):
            m = draw.choice(ms)
            problem = self.ladder.at(m, batches and draw.randint(*batches))
            serving = next((each for each in ranges if each.first_m <= m <= each.last_m), None)
            if serving is None or problem in taken or m in (*self._points.measured, *self._checked):
                continue
            self._checked[m] = config = self._points.winners[serving.row_m].config
            steps.append(TuningStep(problem, None, (config,), in_finals=True, warm_started=True))
            if len(steps) == wanted:
                break
        return steps

    def _check(self, first_m: int, last_m: int) -> Check | None:
        ratios = [ratio for m, ratio in self._check_ratios.items() if first_m <= m <= last_m]
        if not ratios:
            return None
        return Check(len(ratios), statistics.geometric_mean(ratios), max(ratios))


def _anchors(ms: Sequence[int]) -> list[int]:
    """Return the rungs to race in full: both ends, and powers of ANCHOR_FACTOR from one tile on."""
    wanted = {TILE * ANCHOR_FACTOR**power for power in range(14)}
    return [m for m in ms if m in wanted or m in (ms[0], ms[-1])]


def _middle(low: int, high: int, unit: int = 1) -> int | None:
    """Return an M between two: the first row after a tall tile, or else a multiple of a tile's rows about half-way.

    Up to 256 rows configs mostly change with that first row, so it alone decides most ranges. From 1024 on a step is a
    32nd to a 64th of M. Within one step it is the first row of the higher tile, or what lies half-way: a tile of more
    rows than there are takes longer the fewer they are, so that configs change at any row.
    It is a multiple of the unit. Returns None where points are as close as borders are sought.
    """
    if low % _TALL_TILE == 0 and low < MANY_ROWS and low + unit < high:
        return low + unit
    step = max(TILE, 1 << max(0, high.bit_length() - 6))
    middle = math.ceil((low + high) / 2 / step) * step
    if not low < middle < high:
        middle -= step
    if low < middle < high:
        return middle
    if low % step == 0 and low + unit < high:
        return low + unit
    return (low + high) // (2 * unit) * unit if high - low > max(unit, high // _FINEST) else None
