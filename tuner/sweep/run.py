"""A sweep: problems in, trials and winners in the store. Lanes measure, the pool compiles, this loop feeds both."""

from __future__ import annotations

import contextlib
import math
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import connection
from typing import cast

from tuner.config import Config
from tuner.device import Device, Environment
from tuner.errors import KernelError, StoreError, SweepError
from tuner.location import sqlite_path
from tuner.problem import Problem
from tuner.records import Outcome, Trial, Winner
from tuner.store.store import Run, RunStatus, Store
from tuner.sweep.compile import CompilePool, Urgency, pool_ahead
from tuner.sweep.job import Job
from tuner.sweep.lane import Lane, Phase
from tuner.sweep.neighbours import nearest
from tuner.sweep.report import Forecast, Observer, Plan, ProblemReport, Report
from tuner.sweep.standing import decided, standing_winner

Problems = Iterable[Problem] | Callable[[Device], Iterable[Problem]]
"""What to tune; or a function that says it once the device is known."""
COMMIT_S = 0.5
"""A trial is committed this long after it ended at the latest."""
_POLL_S = 0.02
_AHEAD = 8
"""Problems whose binaries are asked for before a GPU is free for them, at most."""
_ABSENCE_S = 2.0
"""A loop away for longer was stopped (Ctrl-Z) or waited for a lock: its workers' silence meanwhile means nothing."""


def sweep(
    store: Store,
    problems: Problems,
    gpus: Sequence[int | None],
    plan: Plan,
    *,
    argv: Sequence[str] = (),
    observer: Observer | None = None,
    stop: threading.Event | None = None,
) -> Report:
    """Tune problems on one or more GPUs of one model, or on the interpreter; keep trials and winners in the store.

    Args:
        store: open for writing.
        problems: each is tuned once, in this order.
        gpus: CUDA indices, or [None] for the interpreter.
        plan: what to do for each problem.
        argv: kept with the run.
        observer: told what happens.
        stop: once set, the trials under way are finished and committed, and the sweep ends.

    Raises:
        DeviceError: a GPU is not there.
        SweepError: a worker could not be started, or the GPUs are of several models.
        StoreError: the database could not be written, or another sweep writes to it.
    """
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(store.sole_writer())
        lanes = [Lane(gpu) for gpu in gpus]
        for lane in lanes:
            stack.callback(lane.close)
        ahead = None if None in gpus else pool_ahead()
        if ahead is not None:
            stack.enter_context(ahead)
        device, environment = _meet(lanes)
        todo = _of(problems, device)
        pool = ahead if ahead is not None and ahead.arch == device.arch else _pool_for(device)
        if pool is not None and pool is not ahead:
            stack.enter_context(pool)
        run = store.begin_run(device, environment, argv=argv, host=platform.node())
        report = Report(device, environment)
        loop = _Loop(store, run, plan, lanes=lanes, pool=pool, observer=observer or Observer(), report=report)
        status = RunStatus.FAILED
        try:
            loop.work(todo, stop or threading.Event())
            status = RunStatus.INTERRUPTED if report.interrupted else RunStatus.DONE
        except KeyboardInterrupt:
            status = RunStatus.INTERRUPTED
            raise
        finally:
            with contextlib.suppress(StoreError):
                # A store that cannot be written has said so already.
                store.end_run(run, status)
        if pool is not None:
            report.compiled, report.compile_s = pool.compiled, pool.seconds
        report.seconds = time.monotonic() - start
        return report


def _of(problems: Problems, device: Device) -> deque[Problem]:
    return deque(dict.fromkeys(problems(device) if callable(problems) else problems))


def _pool_for(device: Device) -> CompilePool | None:
    return None if device.is_interpreter else CompilePool(device)


def forecast(location: str, problems: Problems, gpu: int | None, plan: Plan) -> list[Forecast]:
    """What `sweep` would do; measures and writes nothing.

    Args:
        location: of the database; one that is not there yet knows no trials.
        problems: as for `sweep`.
        gpu: CUDA index, None for the interpreter.
        plan: as for `sweep`.

    Raises:
        DeviceError: the GPU is not there.
    """
    path = sqlite_path(location)
    with contextlib.ExitStack() as stack:
        lane = Lane(gpu)
        stack.callback(lane.close)
        device, environment = _meet([lane])
        store = None
        if not plan.fresh and (path is None or path.exists()):
            store = stack.enter_context(Store.open(location, read_only=True))
        return [_forecast(problem, device, environment, plan, store) for problem in _of(problems, device)]


def _forecast(problem: Problem, device: Device, environment: Environment, plan: Plan, store: Store | None) -> Forecast:
    try:
        job = Job(problem, device, plan.strategy, trials=plan.trials, seed=plan.seed)
    except KernelError as e:
        return Forecast(problem, None, 0, 0, 0, str(e))
    known = store.settled(device, environment, problem, job.kernels) if store else {}
    job.resume(known)
    done = store is not None and decided(store, device, environment, job) is not None
    return Forecast(problem, job.default, job.considered, 0 if done else job.most - job.resumed, job.resumed)


def _meet(lanes: Sequence[Lane]) -> tuple[Device, Environment]:
    hellos = [lane.worker.hello() for lane in lanes]
    models = sorted({hello.device.slug for hello in hellos})
    if len(models) > 1:
        raise SweepError(f"these GPUs are of several models ({', '.join(models)}): name some of one, --device cuda:0")
    return hellos[0].device, hellos[0].environment


class _Loop:
    """The one thread that feeds lanes and pool and writes to the store."""

    def __init__(
        self,
        store: Store,
        run: Run,
        plan: Plan,
        *,
        lanes: Sequence[Lane],
        pool: CompilePool | None,
        observer: Observer,
        report: Report,
    ) -> None:
        self._store, self._run, self._plan = store, run, plan
        self._lanes, self._pool, self._observer, self._report = lanes, pool, observer, report
        self._deadline = time.monotonic() + plan.time_budget_s if plan.time_budget_s is not None else math.inf
        self._trials: list[Trial] = []
        self._committed = self._listened = time.monotonic()
        self._ahead: deque[Job] = deque()
        self._winners = store.winners(device_slug=report.device.slug)
        for lane in lanes:
            lane.pool, lane.record = pool, self._note

    def work(self, todo: deque[Problem], stop: threading.Event) -> None:
        """Go on until every problem is decided or given up, the time is up, or `stop` is set."""
        self._observer.started(self._report.device, self._report.environment, list(todo))
        try:
            while True:
                late = time.monotonic() > self._deadline
                if late or stop.is_set():
                    self._drop(todo)
                for lane in self._lanes:
                    if lane.phase is Phase.DONE:
                        self._conclude(lane, interrupted=stop.is_set())
                    if lane.phase is Phase.FREE and (job := self._next_job(todo)) is not None:
                        self._observer.problem_started(job, lane.gpu)
                        lane.assign(job)
                    lane.step(late=late, stopping=stop.is_set())
                self._compile_ahead(todo)
                self._commit(force=False)
                if all(lane.phase is Phase.FREE for lane in self._lanes):
                    break
                self._listen(stopping=stop.is_set())
        finally:
            # However it ends, what was measured is kept.
            self._commit(force=True)
        self._report.interrupted = stop.is_set()

    def _listen(self, *, stopping: bool) -> None:
        by_connection = {lane.worker.connection: lane for lane in self._lanes if lane.busy}
        for ready in connection.wait(list(by_connection), timeout=_POLL_S):
            by_connection[cast(connection.Connection, ready)].receive(stopping=stopping)
        now = time.monotonic()
        absence, self._listened = now - self._listened, now
        for lane in self._lanes:
            if absence > _ABSENCE_S:
                lane.worker.excuse(absence)
            lane.check_alive()

    def _next_job(self, todo: deque[Problem]) -> Job | None:
        """The next job that has something to measure or to decide; those that have nothing are concluded on the way."""
        while self._ahead or todo:
            job = self._ahead.popleft() if self._ahead else self._prepare(todo.popleft())
            if job is None:
                continue
            place = (self._report.device, self._report.environment)
            winner = None if self._plan.fresh else decided(self._store, *place, job)
            if winner is None:
                return job
            self._end(_report(job, winner, "already tuned"))
        return None

    def _prepare(self, problem: Problem) -> Job | None:
        """The job of a problem with its binaries asked for; None when no kernel serves it."""
        plan = self._plan
        try:
            job = Job(
                problem,
                self._report.device,
                plan.strategy,
                trials=plan.trials,
                seed=plan.seed,
                nearby=lambda: nearest(problem, self._winners, self._report.device.sm_count),
            )
        except KernelError as e:
            self._end(ProblemReport(problem, None, str(e)))
            return None
        settled = (
            {}
            if plan.fresh
            else self._store.settled(self._report.device, self._report.environment, problem, job.kernels)
        )
        job.resume(settled)
        if self._pool is not None:
            job.request(self._pool, Urgency.NEXT)
        return job

    def _compile_ahead(self, todo: deque[Problem]) -> None:
        """Keep the compilers fed while the GPU measures: the next problem's binaries before this one is done."""
        if self._pool is not None:
            self._pool.mend()
        if self._pool is None or not todo:
            return
        if self._pool.waiting < 4 * self._pool.workers and len(self._ahead) < _AHEAD:
            job = self._prepare(todo.popleft())
            if job is not None:
                self._ahead.append(job)

    def _drop(self, todo: deque[Problem]) -> None:
        self._report.untried += [*(job.problem for job in self._ahead), *todo]
        self._ahead.clear()
        todo.clear()

    def _conclude(self, lane: Lane, *, interrupted: bool) -> None:
        job = lane.release()
        reason = lane.failure or ("interrupted" if interrupted else "")
        if lane.verdict is not None:
            self._commit(force=True)
            self._store.decide(self._run, job.problem, job.version(lane.verdict.config), lane.verdict)
            reason = ""
        # Where these finals decided nothing, an earlier run's winner stands.
        winner = standing_winner(self._store, self._report.device, self._report.environment, job)
        if winner is not None:
            self._winners.append(winner)
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
        seconds=job.seconds,
    )
