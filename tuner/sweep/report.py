"""How a sweep ended, and each of its problems."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tuner.hardware.device import Device, Environment
from tuner.problem import Problem
from tuner.problem.family import Family
from tuner.store.records import State, Winner
from tuner.sweep.job import SPENT


@dataclass(frozen=True, slots=True)
class ProblemReport:
    """How one problem of a sweep ended.

    Attributes:
        problem: the problem.
        winner: None when the problem has none.
        reason: why there is no winner, or why nothing was measured; "" otherwise.
        considered: how many configs the search space holds.
        measured: how many trials this sweep measured.
        resumed: how many trials of earlier runs were taken over.
        binaries: how many binaries were requested; similar problems share them.
        stopped: why the search ended; "" where there was none.
        states: measured and resumed trials by state.
        best_us: the median of the fastest trial, None without one. It has not been through the finals.
        seconds: wall time since a worker took the problem on.
        phases_s: that time by phase: "set up" (inputs, reference), "search", "compile" (it waits for a binary),
            "memory" (it waits for other problems of its GPU to free that), "finals".
        draft_s: seconds to list and rank the configs, which happens before.

    What is counted and timed is 0 or empty where the problem was tuned already.
    """

    problem: Problem
    winner: Winner | None
    reason: str
    considered: int = 0
    measured: int = 0
    resumed: int = 0
    binaries: int = 0
    stopped: str = ""
    states: Counter[State] = field(default_factory=Counter)
    best_us: float | None = None
    seconds: float = 0.0
    phases_s: Mapping[str, float] = field(default_factory=dict)
    draft_s: float = 0.0

    def played_again(self, later: ProblemReport) -> ProblemReport:
        """This report with that of the same problem, whose trials and time came later."""
        phases = {*self.phases_s, *later.phases_s}
        return dataclasses.replace(
            later,
            considered=max(self.considered, later.considered),
            measured=self.measured + later.measured,
            resumed=self.resumed,
            binaries=self.binaries + later.binaries,
            seconds=self.seconds + later.seconds,
            phases_s={name: self.phases_s.get(name, 0.0) + later.phases_s.get(name, 0.0) for name in phases},
            draft_s=self.draft_s + later.draft_s,
        )


@dataclass(slots=True)
class Report:
    """How a sweep ended.

    Attributes:
        device, environment: where every figure was measured.
        problems: those that ended, in that order; a problem that an earlier run decided is among them.
        untried: problems that no GPU began.
        families: of ladders whose every step ended.
        untuned: those of `untried` without a winner that counts; of a fresh run none of an earlier run does.
        fresh_since: of a fresh run the run since which measurements count: itself, or that of its plan.
        interrupted: whether the caller stopped the sweep.
        deserted: whether a fleet ended because no node was left, before every problem was decided.
        compiled: how many binaries were made.
        compile_s: wall time from the first request for a binary to the last result.
        start_s: wall time from the start of the workers until they had opened their devices.
        seconds: wall time of everything, from the same start.
    """

    device: Device
    environment: Environment
    problems: list[ProblemReport] = field(default_factory=list)
    untried: list[Problem] = field(default_factory=list)
    families: list[Family] = field(default_factory=list)
    untuned: list[Problem] = field(default_factory=list)
    fresh_since: str | None = None
    interrupted: bool = False
    deserted: bool = False
    compiled: int = 0
    compile_s: float = 0.0
    start_s: float = 0.0
    seconds: float = 0.0

    def add(self, ended: ProblemReport, *, again: bool = False) -> None:
        """Take note of how a problem ended.

        Args:
            ended: how.
            again: whether it is among the problems already. What was measured again is added to that one then.
        """
        if not again:
            self.problems.append(ended)
        elif ended.measured:
            place = next(at for at, each in enumerate(self.problems) if each.problem == ended.problem)
            self.problems[place] = self.problems[place].played_again(ended)

    @property
    def undecided_count(self) -> int:
        """How many problems have no winner, of this run or of an earlier one."""
        return len(self.untuned) + sum(problem.winner is None for problem in self.problems)

    @property
    def is_spent(self) -> bool:
        """Whether the time budget ended the sweep before every problem was decided."""
        given_up = any(problem.winner is None and problem.reason == SPENT for problem in self.problems)
        return not self.interrupted and not self.deserted and (bool(self.untried) or given_up)
