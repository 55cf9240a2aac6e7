"""The loop of a sweep: lanes measure, the pool compiles, a thread drafts the next jobs; this feeds all three."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from multiprocessing import connection
from typing import cast

from tuner.errors import KernelError
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Outcome, Trial, Winner
from tuner.store.store import Run, Store
from tuner.sweep.compile_pool import Urgency
from tuner.sweep.crew import Crew
from tuner.sweep.job import Job
from tuner.sweep.job_prefetch import Drafts
from tuner.sweep.report import Observer, Plan, ProblemReport, Report
from tuner.sweep.settled import decided, standing_winner
from tuner.sweep.supervisor import Lane, Phase

COMMIT_S = 0.5
"""A trial is committed this long after it ended at the latest."""
_POLL_S = 0.02
_NAP_S = 0.005
_AHEAD = 8
"""Problems whose binaries are asked for before a GPU is free for them, at most."""
_DRAFTS = 2
"""Jobs made or being made beyond those, at most."""
_FINALS_S = 0.5
"""What a problem's finals take, as long as none took longer."""
_KEPT_BACK = 0.1
"""Of a time budget, for finals, at most: under the interpreter they may take as long as the search."""
_ABSENCE_S = 2.0
"""A loop away for longer was stopped (Ctrl-Z) or waited for a lock: its workers' silence meanwhile means nothing."""


class Loop:
    """Drives a sweep from problem to problem: the one thread that feeds lanes and pool and writes to the store."""

    def __init__(
        self,
        store: Store,
        run: Run,
        plan: Plan,
        *,
        crew: Crew,
        drafts: Drafts,
        observer: Observer,
        report: Report,
    ) -> None:
        """Nothing happens yet.

        Args:
            store: open for writing, with `run` begun in it.
            run: that trials and winners are recorded under.
            plan: what to do for each problem.
            crew: workers and compilers, met.
            drafts: of the first problems, if somebody asked already.
            observer: told what happens.
            report: filled in as problems end.
        """
        self._store, self._run, self._plan = store, run, plan
        self._lanes, self._pool, self._drafts = crew.lanes, crew.pool, drafts
        self._observer, self._report = observer, report
        self._budget_s = math.inf if plan.time_budget_s is None else plan.time_budget_s
        self._begun, self._finals_s = crew.begun, _FINALS_S
        self._trials: list[Trial] = []
        self._committed = self._listened = time.monotonic()
        self._ahead: deque[Job] = deque()
        for lane in self._lanes:
            lane.pool, lane.record = crew.pool, self._note

    def work(self, todo: deque[Problem], stop: threading.Event) -> None:
        """Go on until every problem is decided or given up, the time is up, or `stop` is set.

        Args:
            todo: problems that no draft was asked for yet; they come after those of the drafts.
            stop: see `tuner.sweep.run.sweep`.
        """
        self._observer.started(self._report.device, self._report.environment, [*self._drafts.problems, *todo])
        try:
            while True:
                late = self._late()
                if late or stop.is_set():
                    self._drop(todo)
                for lane in self._lanes:
                    if lane.phase is Phase.DONE:
                        self._conclude(lane, interrupted=stop.is_set())
                    if lane.phase is Phase.FREE and (job := self._next_job()) is not None:
                        self._observer.problem_started(job, lane.gpu)
                        lane.assign(job)
                    lane.step(late=late, stopping=stop.is_set())
                self._look_ahead(todo)
                self._commit(force=False)
                idle = all(lane.phase is Phase.FREE for lane in self._lanes)
                if idle and not (todo or self._drafts or self._ahead):
                    break
                self._listen(stopping=stop.is_set())
        finally:
            # However it ends, what was measured is kept.
            self._commit(force=True)
        self._report.interrupted = stop.is_set()

    def _late(self) -> bool:
        """Whether what is left of the time budget is for finals alone."""
        kept_back = min(self._finals_s, _KEPT_BACK * self._budget_s)
        return time.monotonic() - self._begun > self._budget_s - kept_back

    def _listen(self, *, stopping: bool) -> None:
        by_connection = {lane.worker.connection: lane for lane in self._lanes if lane.busy}
        if not by_connection:
            self._nap()
        for ready in connection.wait(list(by_connection), timeout=_POLL_S if by_connection else 0.0):
            by_connection[cast(connection.Connection, ready)].receive(stopping=stopping)
        now = time.monotonic()
        absence, self._listened = now - self._listened, now
        for lane in self._lanes:
            if absence > _ABSENCE_S:
                lane.worker.excuse(absence)
            lane.check_alive()

    def _nap(self) -> None:
        """No worker has anything to say: wait for a draft if one is missing, else for binaries."""
        if any(lane.phase is Phase.FREE for lane in self._lanes) and not self._drafts.ready:
            self._drafts.wait(_POLL_S)
        else:
            time.sleep(_NAP_S)

    def _next_job(self) -> Job | None:
        """The next job that has something to measure or to decide; those that have nothing are concluded on the way."""
        while self._ahead or self._drafts.ready:
            job = self._ahead.popleft() if self._ahead else self._taken()
            if job is None:
                continue
            place = (self._report.device, self._report.environment)
            winner = None if self._plan.fresh else decided(self._store, *place, job)
            if winner is None:
                return job
            self._end(_report(job, winner, "already tuned"))
        return None

    def _taken(self) -> Job | None:
        """The next draft with its binaries asked for; None when no kernel serves its problem."""
        problem = self._drafts.problems[0]
        try:
            job = self._drafts.take()
        except KernelError as e:
            self._end(ProblemReport(problem, None, str(e)))
            return None
        place = (self._report.device, self._report.environment)
        job.resume({} if self._plan.fresh else self._store.settled(*place, problem, job.kernels))
        if self._pool is not None:
            job.request(self._pool, Urgency.NEXT)
        return job

    def _look_ahead(self, todo: deque[Problem]) -> None:
        """Keep compilers and drafts busy while the GPU measures: the next problem's binaries come in time."""
        if self._pool is not None:
            self._pool.mend()
            if self._drafts.ready and self._pool.waiting < 4 * self._pool.workers and len(self._ahead) < _AHEAD:
                job = self._taken()
                if job is not None:
                    self._ahead.append(job)
        while todo and len(self._drafts) < _DRAFTS:
            self._drafts.ask(todo.popleft(), self._report.device)

    def _drop(self, todo: deque[Problem]) -> None:
        self._report.untried += [*(job.problem for job in self._ahead), *self._drafts.problems, *todo]
        self._ahead.clear()
        self._drafts.clear()
        todo.clear()

    def _conclude(self, lane: Lane, *, interrupted: bool) -> None:
        job = lane.release()
        self._finals_s = max(self._finals_s, job.watch.phases_s.get("finals", 0.0))
        reason = lane.failure or ("interrupted" if interrupted else "")
        if lane.verdict is not None:
            self._commit(force=True)
            self._store.decide(self._run, job.problem, job.version(lane.verdict.config), lane.verdict)
            reason = ""
        # Where these finals decided nothing, an earlier run's winner stands.
        winner = standing_winner(self._store, self._report.device, self._report.environment, job)
        if winner is not None:
            self._drafts.winners.append(winner)
        self._end(_report(job, winner, reason))

    def _end(self, report: ProblemReport) -> None:
        self._report.problems.append(report)
        self._observer.problem_ended(report)

    def _note(self, job: Job, config: Config, outcome: Outcome) -> None:
        self._trials.append(Trial(job.problem, config, job.version(config), outcome))
        self._observer.trial_ended(job, config, outcome)

    def _commit(self, *, force: bool) -> None:
        now = time.monotonic()
        if self._trials and (force or now - self._committed >= COMMIT_S):
            self._store.record(self._run, self._trials)
            self._trials = []
            self._committed = now


def _report(job: Job, winner: Winner | None, reason: str) -> ProblemReport:
    return ProblemReport(
        job.problem,
        winner,
        reason,
        considered=job.considered,
        measured=job.measured,
        resumed=job.resumed,
        binaries=job.binaries,
        stopped=job.stopped,
        states=job.states,
        best_us=job.best_us,
        seconds=job.watch.seconds,
        phases_s=job.watch.phases_s,
        draft_s=job.draft_s,
    )
