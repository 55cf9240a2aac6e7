"""A sweep: problems in, trials and winners in the store."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.location import sqlite_path
from tuner.lookup import match_rules
from tuner.problem import Problem
from tuner.problem.family import Ladder
from tuner.progress import with_estimate
from tuner.store import health
from tuner.store.store import RunStatus, Store
from tuner.sweep.agenda import Agenda
from tuner.sweep.counted import ALL
from tuner.sweep.history import History
from tuner.sweep.job_prefetch import JobPrefetcher, make_job
from tuner.sweep.ladder import TuningStep
from tuner.sweep.loop import Loop
from tuner.sweep.many_rows import Estimate
from tuner.sweep.observer import Observer
from tuner.sweep.plan import Forecast, Plan
from tuner.sweep.report import Report
from tuner.sweep.shared_agenda import SharedAgenda
from tuner.sweep.sweep_processes import SweepProcesses

Problems = Iterable[Problem | Ladder] | Callable[[Device], Iterable[Problem | Ladder]]
"""What to tune, or a function that returns it once the device is known."""


def sweep(
    store: Store,
    problems: Problems,
    gpus: Sequence[int | None] | SweepProcesses,
    plan: Plan,
    *,
    argv: Sequence[str] = (),
    observer: Observer | None = None,
    stop: threading.Event | None = None,
) -> Report:
    """Tune problems on one or more GPUs of one model, or on the interpreter; keep trials and winners in the store.

    Args:
        store: open for writing.
        problems: each is tuned once, in this order, unless there are several GPUs and no time budget (`rarest_first`);
            the rungs of ladders come after the others.
        gpus: CUDA indices, or [None] for the interpreter; or the `SweepProcesses` of some that were started before.
        plan: what to do for each problem.
        argv: the command line, kept with the run.
        observer: told what happens.
        stop: once set, the trials under way are finished and committed, and the sweep ends.

    Raises:
        DeviceError: a GPU is not there.
        SweepError: a worker could not be started, or the GPUs are of several models.
        StoreError: the database could not be written, or another sweep writes to it.
        KeyboardInterrupt: `stop` was set before the workers were ready, while others measured on the GPUs, or while
            the store's server was away.
    """
    if not callable(problems):
        problems = tuple(problems)  # read a second time where the device is not the expected one
    with contextlib.ExitStack() as stack:
        stack.enter_context(store.sole_writer())
        counted = plan.counted(store)
        processes = gpus if isinstance(gpus, SweepProcesses) else stack.enter_context(SweepProcesses(gpus))
        prefetcher = stack.enter_context(JobPrefetcher(plan))
        prefetcher.import_ahead()
        # The first job is made for the device expected here while the workers open theirs.
        expected = _expected(store, processes)
        in_order = len(processes.supervisors) == 1 or plan.time_budget_s is not None
        agenda_for = functools.partial(_agenda, problems, in_order=in_order)
        agenda = agenda_for(expected) if expected else Agenda(())
        if expected and agenda:
            prefetcher.request(agenda.take(), expected)
        device, environment = processes.wait_until_ready(stop)
        processes.hold_gpus(stop)  # before anything is read that who holds them now may write
        prefetcher.pool = processes.pool
        if expected is None or dataclasses.astuple(device) != dataclasses.astuple(expected):  # the rates, too
            prefetcher.clear()
            agenda = agenda_for(device)
        prefetcher.knowledge.winners.extend(store.winners(device_slug=device.slug))
        run = store.begin_run(device, environment, argv=argv, host=platform.node())
        store.survive_outages(run, stop)
        counted = counted.joined(run.id)
        report = Report(device, environment, start_s=time.monotonic() - processes.begun)
        report.fresh_since = (plan.fresh_since or run.name) if plan.fresh else None
        loop = Loop(
            store,
            run,
            plan,
            counted,
            agenda=SharedAgenda(store, run, agenda, counted),
            processes=processes,
            prefetcher=prefetcher,
            observer=observer or Observer(),
            report=report,
        )
        with store.ending_if_raised(run):
            loop.work(stop or threading.Event())
        store.end_run(run, RunStatus.INTERRUPTED if report.interrupted else RunStatus.DONE)
        if processes.pool is not None:
            report.compiled, report.compile_s = processes.pool.compiled, processes.pool.seconds
        report.seconds = time.monotonic() - processes.begun
        return report


def _expected(store: Store, processes: SweepProcesses) -> Device | None:
    """Return the device that the workers will most likely report: the only one of its architecture in the store."""
    known = [row.device for row in store.devices() if row.device.arch == processes.arch]
    return known[0] if len(known) == 1 else None


def _agenda(problems: Problems, device: Device, *, in_order: bool) -> Agenda:
    listed = list(problems(device) if callable(problems) else problems)
    ladders = [each for each in listed if isinstance(each, Ladder)]
    single = [each for each in listed if isinstance(each, Problem)]
    ordered = single if in_order else rarest_first(single)
    return Agenda(ordered, ladders, estimates(device), finishes_first=in_order)


def estimates(device: Device) -> Estimate:
    """What the cost model says of configs on a device."""

    @functools.cache
    def estimate(config: Config, problem: Problem) -> float | None:
        if not match_rules.can_run(config, problem, device):
            return math.inf
        spec = registry.find(problem.op, config.kernel)
        try:
            return None if spec.estimate_us is None else registry.ask(spec, "estimate_us", config, problem, device)
        except KernelError:
            return None

    return estimate


def rarest_first(problems: Sequence[Problem]) -> list[Problem]:
    """Return problems in the order of how many are of their kind, which differs in M, N and K alone.

    The fewer are of a kind, the fewer of its binaries another problem has compiled already. At the end of a sweep too
    few problems are left to keep the compilers busy, and several GPUs would wait for them.
    """

    def kind(each: Problem) -> tuple[object, ...]:
        return each.op, each.a_dtype, each.b_dtype, each.out_dtype, each.layout, each.aligned, each.epilogue

    count = Counter(map(kind, problems))
    return sorted(problems, key=lambda each: count[kind(each)])


def forecast(location: str, problems: Problems, gpu: int | None, plan: Plan) -> list[Forecast]:
    """Return what `sweep` would do; nothing is measured or written.

    Args:
        location: the database; one that does not exist yet, or is empty, knows no trials.
        problems: as for `sweep`.
        gpu: CUDA index, None for the interpreter.
        plan: as for `sweep`.

    Raises:
        DeviceError: the GPU is not there.
    """
    path = sqlite_path(location)
    with contextlib.ExitStack() as stack:
        device, environment = stack.enter_context(SweepProcesses([gpu], compilers=False)).wait_until_ready()
        store = None
        if (path is None or path.exists()) and health.current(location)[1] is not None:
            store = stack.enter_context(Store.open(location, read_only=True))
        history = History(store, device, environment, ALL if store is None else plan.counted(store))
        listed = list(problems(device) if callable(problems) else problems)
        each = [one.rungs if isinstance(one, Ladder) else (one,) for one in listed]
        todo = list(dict.fromkeys(problem for some in each for problem in some))
        return [_forecast(problem, device, plan, history) for problem in with_estimate(todo, "problems")]


def _forecast(problem: Problem, device: Device, plan: Plan, history: History) -> Forecast:
    try:
        job = make_job(TuningStep(problem), device, plan)
    except KernelError as e:
        return Forecast(problem, None, 0, 0, 0, str(e))
    history.resume(job)
    to_try = job.most - job.resumed if history.winner_to_keep(job) is None else 0
    return Forecast(problem, job.default, job.considered, to_try, job.resumed)
