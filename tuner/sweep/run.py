"""A sweep: problems in, trials and winners in the store."""

from __future__ import annotations

import contextlib
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tuner.errors import KernelError, StoreError
from tuner.hardware.device import Device, Environment
from tuner.location import sqlite_path
from tuner.problem import Problem
from tuner.store.store import RunStatus, Store
from tuner.sweep.crew import Crew
from tuner.sweep.job import Job
from tuner.sweep.job_prefetch import Drafts
from tuner.sweep.loop import Loop
from tuner.sweep.report import Forecast, Observer, Plan, Report
from tuner.sweep.search_problem import survey
from tuner.sweep.settled import decided

Problems = Iterable[Problem] | Callable[[Device], Iterable[Problem]]
"""What to tune; or a function that says it once the device is known."""


def sweep(
    store: Store,
    problems: Problems,
    gpus: Sequence[int | None] | Crew,
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
        gpus: CUDA indices, or [None] for the interpreter; or a `Crew` of them that was started before.
        plan: what to do for each problem.
        argv: kept with the run.
        observer: told what happens.
        stop: once set, the trials under way are finished and committed, and the sweep ends.

    Raises:
        DeviceError: a GPU is not there.
        SweepError: a worker could not be started, or the GPUs are of several models.
        StoreError: the database could not be written, or another sweep writes to it.
    """
    if not callable(problems):
        problems = tuple(problems)  # gone through once more where the device is not the expected one
    with contextlib.ExitStack() as stack:
        stack.enter_context(store.sole_writer())
        crew = gpus if isinstance(gpus, Crew) else stack.enter_context(Crew(gpus))
        drafts = stack.enter_context(Drafts(plan))
        drafts.warm_up()
        guess = _expected(store, crew)
        todo = _of(problems, guess) if guess else deque()
        if guess and todo:
            drafts.ask(todo.popleft(), guess)
        device, environment = crew.meet()
        if device != guess:
            drafts.clear()
            todo = _of(problems, device)
        drafts.winners += store.winners(device_slug=device.slug)
        run = store.begin_run(device, environment, argv=argv, host=platform.node())
        report = Report(device, environment, start_s=time.monotonic() - crew.begun)
        loop = Loop(store, run, plan, crew=crew, drafts=drafts, observer=observer or Observer(), report=report)
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
        if crew.pool is not None:
            report.compiled, report.compile_s = crew.pool.compiled, crew.pool.seconds
        report.seconds = time.monotonic() - crew.begun
        return report


def _expected(store: Store, crew: Crew) -> Device | None:
    """The device that the workers will most likely report: the one of its architecture that the store knows."""
    known = [row.device for row in store.devices() if row.device.arch == crew.arch]
    return known[0] if len(known) == 1 else None


def _of(problems: Problems, device: Device) -> deque[Problem]:
    return deque(dict.fromkeys(problems(device) if callable(problems) else problems))


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
        device, environment = stack.enter_context(Crew([gpu], compilers=False)).meet()
        store = None
        if not plan.fresh and (path is None or path.exists()):
            store = stack.enter_context(Store.open(location, read_only=True))
        return [_forecast(problem, device, environment, plan, store) for problem in _of(problems, device)]


def _forecast(problem: Problem, device: Device, environment: Environment, plan: Plan, store: Store | None) -> Forecast:
    try:
        field = survey(problem, device, trials=plan.trials, seed=plan.seed, suggested=plan.suggested.get(problem, ()))
    except KernelError as e:
        return Forecast(problem, None, 0, 0, 0, str(e))
    job = Job(field, plan.strategy)
    known = store.settled(device, environment, problem, job.kernels) if store else {}
    job.resume(known)
    done = store is not None and decided(store, device, environment, job) is not None
    return Forecast(problem, job.default, job.considered, 0 if done else job.most - job.resumed, job.resumed)
