"""An agenda that runs on one server's database share: each problem is measured by one of them.

A run claims a step's problem before it takes the step; for a step of a ladder it first claims the ladder, by its last
rung. It waits for what other runs have: in the end that is decided, or its run has died and another run goes on.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Mapping

from tuner.problem import Problem
from tuner.problem.family import Family
from tuner.store.claims import Holder
from tuner.store.records import Winner
from tuner.store.runs import Run
from tuner.sweep.agenda import Agenda
from tuner.sweep.counted import ALL, Counted
from tuner.sweep.ladder import Result, TuningStep
from tuner.sweep.storage import SweepStore

PAUSE_S = 1.0
"""How often a run asks what others have ended."""
_log = logging.getLogger(__name__)


class SharedAgenda:
    """A run's agenda without what other runs have claimed, and the steps that wait for these; see `Store.claim`."""

    def __init__(self, store: SweepStore, run: Run, agenda: Agenda, counted: Counted = ALL) -> None:
        """Claim nothing yet. Of ladders that were tuned before, those of the runs `counted` count."""
        self._store, self._run, self._agenda, self._counted = store, run, agenda, counted
        self._steps: dict[Problem, TuningStep] = {}
        self._claimed_keys: set[Problem] = set()
        self._elsewhere: list[TuningStep] = []
        self._next_look = 0.0
        self._has_said = False

    def __bool__(self) -> bool:
        return bool(self._agenda or self._elsewhere)

    @property
    def is_open(self) -> bool:
        """Whether more problems may be added, so that a sweep must not end yet."""
        return self._agenda.is_open

    @property
    def is_waiting(self) -> bool:
        """Whether other runs have all that is left."""
        return bool(self._elsewhere) and not self._agenda

    @property
    def problems(self) -> list[Problem]:
        """The problems not begun, as far as they are known."""
        return [*self._agenda.problems, *(step.problem for step in self._elsewhere)]

    def take(self) -> TuningStep | None:
        """Return the next step whose problem this run could claim; None where there is none."""
        while self._agenda:
            step = self._agenda.take()
            if self.claim(step):
                return step
        return None

    def claim(self, step: TuningStep) -> bool:
        """Claim a step's problem, or take note that another run has it."""
        if self._claim_ladders(step.problem) and self._store.claim(self._run, step.problem):
            self._steps[step.problem] = step
            return True
        self._elsewhere.append(step)
        return False

    def _claim_ladders(self, problem: Problem) -> bool:
        """Claim every ladder that may go on from a problem's end, or no ladder more than before.

        A run that kept one and waited for a second might wait for ever, for the run with the second may wait for the
        first.
        """
        claimed: list[Problem] = []
        for key in sorted(self._agenda.ladder_keys(problem) - self._claimed_keys, key=str):
            if not self._store.claim(self._run, key, begin=True):
                self._store.release(self._run, claimed)
                return False
            claimed.append(key)
        self._claimed_keys.update(claimed)
        return True

    def begin(self, problem: Problem) -> bool:
        """Begin a problem that this run has claimed, unless another run has taken it over meanwhile."""
        if self._store.begin_claimed(self._run, problem):
            return True
        if (step := self._steps.pop(problem, None)) is not None:  # None for one that has ended here
            self._elsewhere.append(step)
        return False

    def look_again(self, free: int) -> None:
        """Take up what others have ended or left; where they have the rest, take over what they have not begun.

        Args:
            free: how many GPUs have nothing to do.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + PAUSE_S
        needs = [
            (step, {step.problem} | self._agenda.ladder_keys(step.problem) - self._claimed_keys)
            for step in self._elsewhere
        ]
        others = self._store.claimed_by_others(self._run, {problem for _, needed in needs for problem in needed})
        ready = [step for step, needed in needs if needed.isdisjoint(others)]
        if not ready:
            unbegun = (step for step, needed in needs if not any(others[each].begun for each in needed & others.keys()))
            ready = [step for step in itertools.islice(unbegun, free) if self._take_over(step)]
        self._elsewhere = [step for step in self._elsewhere if step not in ready]
        if ready:
            self._counted.renew(self._store)
        for step in reversed(ready):
            self._agenda.put_back(step)
        if any(self._agenda.ladder_keys(step.problem) for step in ready):
            self.know_families()
        if not ready and not self._has_said:
            self._has_said = True
            self._say(others)

    def _take_over(self, step: TuningStep) -> bool:
        return self._claim_ladders(step.problem) and self._store.claim(self._run, step.problem, begin=True)

    def _say(self, others: Mapping[Problem, Holder]) -> None:
        left = f"{len(self._elsewhere)} problem{'s' * (len(self._elsewhere) != 1)}"
        hosts = ", ".join(sorted({holder.host for holder in others.values()}))
        _log.warning("%s left, measured by other runs (on %s): waiting for them; Ctrl-C ends the wait", left, hosts)

    def know_families(self) -> None:
        """Take note of what was recorded on the same device and under the same environment, also by other runs."""
        recorded = self._store.families(device_slug=self._run.device.slug)
        ours = (each for each in recorded if each.environment == self._run.environment)
        self._agenda.know(each for each in ours if self._counted.has(each.run_id))

    def awaits(self, problem: Problem) -> bool:
        """Whether a ladder goes on from how this problem ends."""
        return self._agenda.awaits(problem)

    def ended(self, problem: Problem, result: Result, winners: Iterable[Winner]) -> list[Family]:
        """Take note of how a problem ended (`Agenda.ended`); other runs may claim it after `release`."""
        return self._agenda.ended(problem, result, winners)

    def release(self, problem: Problem) -> None:
        """Give back a problem that ended and the ladders that are complete by it; call it once families are stored."""
        left = self._agenda.open_ladder_keys
        ended = {problem, *(self._claimed_keys - left)} - left
        self._claimed_keys &= left
        self._steps.pop(problem, None)
        self._store.release(self._run, sorted(ended, key=str))
        self._agenda.written()

    def drop(self) -> list[Problem]:
        """Give up what was not begun, and return its problems."""
        given_up = [*self._agenda.drop(), *(step.problem for step in self._elsewhere)]
        self._elsewhere.clear()
        return given_up
