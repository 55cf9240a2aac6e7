"""The loop of a sweep: workers measure, the pool compiles, a thread makes jobs, and this one thread feeds all three."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from multiprocessing import connection
from typing import cast

from tuner.errors import KernelError, StoreError
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Outcome, Trial, Winner
from tuner.store.runs import Run
from tuner.sweep.compile_pool import Urgency
from tuner.sweep.counted import Counted
from tuner.sweep.history import History
from tuner.sweep.job import Job
from tuner.sweep.job_prefetch import JobPrefetcher
from tuner.sweep.ladder import Result, TuningStep
from tuner.sweep.neighbours import model_errors
from tuner.sweep.observer import Observer
from tuner.sweep.plan import Plan
from tuner.sweep.report import ProblemReport, Report
from tuner.sweep.search import failures_of, times_of
from tuner.sweep.shared_agenda import SharedAgenda
from tuner.sweep.storage import SweepStore
from tuner.sweep.supervisor import Phase, WorkerSupervisor
from tuner.sweep.sweep_processes import SweepProcesses

COMMIT_S = 0.5
"""A trial is committed at most this long after it ended."""
HEARTBEAT_S = 10.0
"""How often a run says that it lives; after `tuner.store.runs.DEAD_AFTER_S` of silence it is taken for dead."""
_POLL_S = 0.02
_NAP_S = 0.005
_QUEUED_JOBS = 8
"""The most jobs whose binaries are requested before a GPU is free for them."""
_PREFETCHED_JOBS = 4
"""The most jobs made beyond those."""
_LOOK_S = 0.02
"""How long problems are looked up in the store before the loop listens to the workers again."""
_TUNED = "already tuned"
_FINALS_S = 0.5
"""How long a problem's finals take, as long as none took longer."""
_FINALS_SHARE = 0.1
"""The largest share of a time budget kept for finals: under the interpreter they may take as long as the search."""
_ABSENCE_S = 2.0
"""A loop that was away for longer was stopped (Ctrl-Z) or waited for a lock, so its workers' silence means nothing."""


class Loop:
    """Drives a sweep from problem to problem; the only thread that writes to the store."""

    def __init__(
        self,
        store: SweepStore,
        run: Run,
        plan: Plan,
        counted: Counted,
        *,
        agenda: SharedAgenda,
        processes: SweepProcesses,
        prefetcher: JobPrefetcher,
        observer: Observer,
        report: Report,
    ) -> None:
        """Prepare; nothing is measured yet.

        The store is open for writing with `run` begun in it, the processes are ready, and the report is filled in as
        problems end. The agenda has the problems whose jobs were not requested from the prefetcher yet.
        """
        self._store, self._run, self._agenda = store, run, agenda
        self._supervisors, self._pool, self._prefetcher = processes.supervisors, processes.pool, prefetcher
        self._observer, self._report = observer, report
        self._history = History(store, report.device, report.environment, counted)
        self._plan = plan
        self._budget_s = math.inf if plan.time_budget_s is None else plan.time_budget_s
        self._begun, self._finals_s = processes.begun, _FINALS_S
        self._trials: list[Trial] = []
        self._unsure = False  # whether some may be stored already: Ctrl-C may come between a commit and its return
        self._committed = self._listened = self._beat = time.monotonic()
        self._queue: deque[Job] = deque()

    def work(self, stop: threading.Event) -> None:
        """Go on until every problem is decided or given up, the time is up, or `stop` is set.

        The problems whose jobs were requested come before those of the agenda. For `stop` see `tuner.sweep.run.sweep`.
        """
        self._agenda.know_families()
        problems = [*self._prefetcher.problems, *self._agenda.problems]
        self._observer.started(self._report.device, self._report.environment, problems)
        # A first job may have been requested before there was a run that could claim its problem.
        if not all(self._agenda.claim(step) for step in self._prefetcher.steps):
            self._prefetcher.clear()
        try:
            while True:
                late = self._late()
                if late or stop.is_set():
                    self._leave_untried()
                # What the workers wait for comes before all else, the oldest problem of a GPU first.
                for supervisor in sorted(self._supervisors, key=lambda each: each.slot.age):
                    if self._may_begin(supervisor) and (job := self._next_job()) is not None:
                        self._observer.problem_started(job, supervisor.gpu)
                        supervisor.assign(job)
                    supervisor.step(late=late, stopping=stop.is_set())
                ended = [supervisor for supervisor in self._supervisors if supervisor.phase is Phase.DONE]
                for supervisor in ended:
                    self._conclude(supervisor, interrupted=stop.is_set())
                self._look_ahead()
                self._commit(force=False)
                if not self._at_work and not (self._agenda or self._prefetcher or self._queue or self._agenda.is_open):
                    break
                if not ended:  # whose workers may begin another problem
                    self._listen(stopping=stop.is_set())
        finally:
            # However the loop ends, what was measured is kept.
            self._commit(force=True)
        self._report.interrupted = stop.is_set()
        self._report.untuned = self._history.undecided(self._report.untried)

    def _late(self) -> bool:
        """Return whether the rest of the time budget is for finals alone."""
        problems = max(1 + len(supervisor.slot.others) for supervisor in self._supervisors)  # of one GPU
        kept_back = min(problems * self._finals_s, _FINALS_SHARE * self._budget_s)
        return time.monotonic() - self._begun > self._budget_s - kept_back

    @property
    def _at_work(self) -> bool:
        return any(supervisor.job is not None for supervisor in self._supervisors)

    @property
    def _idle_gpus(self) -> int:
        return sum(supervisor.phase is Phase.FREE and supervisor.slot.is_first for supervisor in self._supervisors)

    def _may_begin(self, supervisor: WorkerSupervisor) -> bool:
        """Return whether a supervisor may take on a problem; no GPU gets another one while some GPU has none."""
        return supervisor.may_begin and (supervisor.slot.is_first or not self._idle_gpus)

    def _listen(self, *, stopping: bool) -> None:
        """Wait a moment for replies and hand them to their supervisors."""
        by_connection = {each.worker.connection: each for each in self._supervisors if each.busy}
        if not by_connection:
            self._nap()
        for ready in connection.wait(list(by_connection), timeout=_POLL_S if by_connection else 0.0):
            by_connection[cast(connection.Connection, ready)].receive(stopping=stopping)
        now = time.monotonic()
        absence, self._listened = now - self._listened, now
        for supervisor in self._supervisors:
            if absence > _ABSENCE_S:
                supervisor.worker.extend_deadline(absence)
            supervisor.check_alive()

    def _nap(self) -> None:
        """Wait for a job if a GPU needs one, otherwise for binaries; no worker has anything to say."""
        if self._idle_gpus and self._prefetcher and not self._prefetcher.ready:
            self._prefetcher.wait(_POLL_S)
        else:
            time.sleep(_NAP_S)

    def _next_job(self) -> Job | None:
        """Return the next job with something to measure or decide; jobs with nothing to do end on the way."""
        while self._queue or self._prefetcher.ready:
            job = self._queue.popleft() if self._queue else self._take_job()
            if job is not None and self._agenda.begin(job.problem):
                return job
        return None

    def _take_job(self) -> Job | None:
        """Take the next job and request its binaries; None where there is nothing to do for it, or no kernel."""
        problem = self._prefetcher.problems[0]
        try:
            job = self._prefetcher.take()
            self._history.resume(job)
        except KernelError as e:
            self._end(ProblemReport(problem, None, str(e)))
            return None
        if self._history.has_ended(problem) and not job.owes_finals:
            winner = self._history.stored_winner(job)
            self._end(_report(job, winner, _TUNED if winner else "this run has tried it before"), job)
            return None
        if not job.owes_finals and (winner := self._history.winner_to_keep(job)) is not None:
            self._end(_report(job, winner, _TUNED), job)
            return None
        if self._pool is not None:
            try:
                job.request(self._pool, Urgency.NEXT)
            except KernelError as e:
                self._end(_report(job, None, str(e)), job)
                return None
        return job

    def _look_ahead(self) -> None:
        """Keep the compilers and the prefetcher busy, so that the next problem's binaries are ready in time."""
        if self._pool is not None:
            self._pool.recover()
            if self._prefetcher.ready and self._pool.waiting < 4 * self._pool.workers:
                job = self._take_job() if len(self._queue) < _QUEUED_JOBS else None
                if job is not None:
                    self._queue.append(job)
        if self._store.is_away and self._at_work:
            return  # a claim waits for the server, and the GPUs at work would wait for this loop
        if self._agenda.is_waiting and (idle := self._idle_gpus) and not (self._queue or self._prefetcher):
            self._agenda.look_again(idle)
        until = time.monotonic() + _LOOK_S
        while len(self._prefetcher) < _PREFETCHED_JOBS and (step := self._agenda.take()) is not None:
            if self._skip_or_request(step) and time.monotonic() > until:
                break

    def _skip_or_request(self, step: TuningStep) -> bool:
        """End a step whose problem has a winner already, or else request its job; return whether it ended."""
        problem = step.problem
        owes_finals = step.in_finals and not self._history.has_tried(problem, step.configs)
        strategy = step.strategy or self._plan.strategy
        winner = None if owes_finals else self._history.winner_without_job(problem, strategy)
        if winner is None:
            self._prefetcher.request(step, self._report.device)
            return False
        known = self._history.settled(problem) if self._agenda.awaits(problem) else {}
        self._end(ProblemReport(problem, winner, _TUNED), known=known)
        return True

    def _leave_untried(self) -> None:
        """Give up every problem that no GPU has begun."""
        self._report.untried += [job.problem for job in self._queue]
        self._report.untried += [*self._prefetcher.problems, *self._agenda.drop()]
        self._queue.clear()
        self._prefetcher.clear()

    def _conclude(self, supervisor: WorkerSupervisor, *, interrupted: bool) -> None:
        """Store the winner of a supervisor's finished job and report the problem."""
        self._collect(supervisor)
        job = supervisor.release()
        self._finals_s = max(self._finals_s, job.stopwatch.phases_s.get("finals", 0.0))
        reason = supervisor.failure or ("interrupted" if interrupted else "")
        if supervisor.verdict is not None:
            self._commit(force=True)
            self._store.decide(self._run, job.problem, job.version(supervisor.verdict.config), supervisor.verdict)
            reason = ""
        # Where these finals decided nothing, an earlier run's winner still holds.
        winner = self._history.stored_winner(job)
        if winner is not None:
            self._prefetcher.knowledge.winners.append(winner)
        self._end(_report(job, winner, reason), job)

    def _end(
        self, report: ProblemReport, job: Job | None = None, *, known: Mapping[Config, Outcome] | None = None
    ) -> None:
        """Report a problem that ended, and go on with the ladders that waited for it.

        Without a job, `known` is what earlier runs know of the problem's configs, None where it has no search.
        """
        self._report.add(report, again=self._history.has_ended(report.problem))
        self._history.note_ended(report.problem)
        self._observer.problem_ended(report)
        if job is not None:
            result = Result(report.winner, job.ratios, job.times_us, job.failed)
        else:
            result = Result(report.winner, {}, times_of(known or {}), failures_of(known or {}))
        self._advance_ladders(report.problem, result)
        self._agenda.release(report.problem)

    def _advance_ladders(self, problem: Problem, result: Result) -> None:
        """Go on with the ladders that waited for a problem, and store the families that are complete by it."""
        knowledge = self._prefetcher.knowledge
        if self._agenda.awaits(problem):
            knowledge.errors[problem] = model_errors(problem, self._report.device, result.times_us)
        counted = list(filter(self._history.counts, knowledge.winners))
        for family in self._agenda.ended(problem, result, counted):
            self._store.record_family(self._run, family)
            self._report.families.append(family)
            self._observer.family_decided(family)

    def _collect(self, supervisor: WorkerSupervisor) -> None:
        """Take over the trials that a supervisor's job finished since the last call."""
        job = supervisor.job
        for config, outcome in supervisor.take_finished():
            assert job is not None
            self._trials.append(Trial(job.problem, config, job.version(config), outcome))
            self._observer.trial_ended(job, config, outcome)

    def _commit(self, *, force: bool) -> None:
        for supervisor in self._supervisors:
            self._collect(supervisor)
        now = time.monotonic()
        if self._trials and (force or now - self._committed >= COMMIT_S):
            again, self._unsure = self._unsure, True
            self._store.record(self._run, self._trials, again=again)
            self._trials, self._unsure = [], False
            self._committed = now
        if now - self._beat >= HEARTBEAT_S:
            self._beat = now
            with contextlib.suppress(StoreError):  # the next trial's write says what is wrong
                self._store.heartbeat(self._run)


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
        seconds=job.stopwatch.seconds,
        phases_s=job.stopwatch.phases_s,
        draft_s=job.draft_s,
    )
