"""A node of a fleet: today's sweep on all of its GPUs, over work that the driver leases it.

It has no database: what it measures goes to the driver within half a second, and what it needs to know of earlier
trials it asks the driver for. The driver polls it, so that a node never calls anybody.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tuner.errors import StoreError, TunerError, in_short
from tuner.fleet.feed import Feed
from tuner.fleet.messages import Answer, Delivery, End, Hello, Item, Orders
from tuner.hardware.device import Device, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import Family
from tuner.store.claims import Holder
from tuner.store.records import DecidedFamily, KernelVersion, Outcome, Trial, Verdict, Winner, now
from tuner.store.rows import trial_values
from tuner.store.runs import Run
from tuner.sweep.counted import Counted
from tuner.sweep.job import Job
from tuner.sweep.job_prefetch import JobPrefetcher
from tuner.sweep.loop import Loop
from tuner.sweep.observer import Observer
from tuner.sweep.plan import Plan
from tuner.sweep.report import ProblemReport, Report
from tuner.sweep.run import estimates
from tuner.sweep.shared_agenda import SharedAgenda
from tuner.sweep.sweep_processes import SweepProcesses
from tuner.version import __version__

STREAM_S = 0.5
"""How long a node keeps what it measured before it sends it to the driver."""


def kernels_of(ops: Sequence[str]) -> dict[str, str]:
    """Version and source hash of each kernel of these ops, as two processes compare them."""
    return {
        f"{op}.{name}": f"{spec.version} {registry.ask(spec, 'source_hash')}"
        for op in ops
        for name, spec in sorted(registry.of(op).items())
    }


def take_priority_back() -> None:
    """Give every thread of this process the priority of its parent, Ray's raylet, where it may.

    Ray starts its workers at nice 15, where a node gets no core beside other work. Threads have priorities of their own
    on Linux, and processes inherit that of the thread which starts them.
    """
    normal = os.getpriority(os.PRIO_PROCESS, os.getppid())
    for thread in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError):  # it may not, or the thread has ended
            if os.getpriority(os.PRIO_PROCESS, int(thread.name)) > normal:
                os.setpriority(os.PRIO_PROCESS, int(thread.name), normal)


class Node(Observer):
    """One machine's sweep. Its methods are called from another machine, one at a time."""

    def __init__(self, gpus: Sequence[int | None], ops: Sequence[str], references: Sequence[str]) -> None:
        """Remember what to work with.

        Args:
            gpus: CUDA indices, or [None] for the interpreter.
            ops: of the job's problems.
            references: of kernels to import, as `tuner.kernel.registry.load` takes them.
        """
        self._gpus, self._ops, self._references = gpus, ops, references
        self.unknown = frozenset[Item]()
        """Work of which the database knew nothing when it was leased."""
        self._out = Delivery()
        self._changed = threading.Condition()
        self._answer: Answer | None = None
        self._stop = threading.Event()
        handler = _Warnings(self._out_warning)
        logging.getLogger("tuner").addHandler(handler)

    def hello(self) -> Hello:
        """Start the workers and say what they found.

        Raises:
            TunerError: they cannot work here.
        """
        take_priority_back()
        registry.load(self._references)
        self._processes = SweepProcesses(self._gpus)
        device, environment = self._processes.wait_until_ready()
        self._processes.hold_gpus()
        self._feed = Feed(estimates(device))
        self._device, self._environment = device, environment
        kernels, gpus = kernels_of(self._ops), len(self._gpus)
        return Hello(platform.node(), gpus, device, environment, __version__, kernels, tuple(self._out.warnings))

    def begin(self, run: Run, plan: Plan, counted: Counted, is_shared: bool) -> None:
        """Begin the sweep under a run that the driver has begun; a time budget counts from now.

        Args:
            run, plan: what to do.
            counted: the runs that count.
            is_shared: whether other runs may write to the driver's database.
        """
        self._out = Delivery()
        if plan.time_budget_s is not None:
            plan = replace(plan, time_budget_s=plan.time_budget_s + time.monotonic() - self._processes.begun)
        arguments = run, plan, counted, is_shared
        threading.Thread(target=self._sweep, args=arguments, name="tuner-node", daemon=True).start()

    def exchange(self, orders: Orders) -> Delivery:
        """Take orders; return what happened, at once where a question waits, else after a moment."""
        returned = self._feed.give_back(orders.give_back)
        self.unknown = self.unknown | orders.unknown  # another set: the sweep's thread may be going through this one
        self._feed.offer(orders.items)
        if orders.closing:
            self._feed.close()
        if orders.stop:
            self._stop.set()
        until = time.monotonic() + (0.0 if orders.give_back else STREAM_S)
        with self._changed:
            if orders.answer is not None:
                self._answer = orders.answer
                self._changed.notify_all()
            while self._out.question is None and self._out.end is None and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            delivery = self._take()
        delivery.returned = returned
        return delivery

    def tell(self, method: str, *arguments: Any) -> None:
        """Have the driver call a method of its store, some time soon."""
        with self._changed:
            self._out.writes.append((method, arguments))

    def ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Have the driver call a method of its store, after what it was told before, and wait for the result."""
        with self._changed:
            self._out.question = (method, arguments, options)
            self._changed.notify_all()
            while self._answer is None:
                self._changed.wait()
            answer, self._answer = self._answer, None
        if answer.error:
            raise StoreError(answer.error)
        return answer.value

    def trial_ended(self, job: Job, config: Config, outcome: Outcome) -> None:  # noqa: ARG002
        """Count the trial."""
        with self._changed:
            self._out.trials += 1

    def problem_ended(self, report: ProblemReport) -> None:
        """Report it."""
        with self._changed:
            self._out.problems.append(report)

    def family_decided(self, family: Family) -> None:
        """Report it."""
        with self._changed:
            self._out.families.append(family)

    def _out_warning(self, line: str) -> None:
        with self._changed:
            self._out.warnings.append(line)

    def _take(self) -> Delivery:
        # What ended is taken first: its winner and families are among the writes by then.
        over, begun = (_emptied(items) for items in (self._feed.over, self._feed.begun))
        delivery, self._out = self._out, Delivery()
        delivery.ended, delivery.begun = over, begun
        return delivery

    def _sweep(self, run: Run, plan: Plan, counted: Counted, is_shared: bool) -> None:
        processes, start_s = self._processes, time.monotonic() - self._processes.begun
        error = ""
        try:
            with processes, JobPrefetcher(plan) as prefetcher:
                store = LedgerStore(self, is_shared=is_shared)
                prefetcher.pool = processes.pool
                prefetcher.knowledge.winners.extend(store.winners(device_slug=self._device.slug))
                report = Report(self._device, self._environment)
                loop = Loop(
                    store,
                    run,
                    plan,
                    counted,
                    agenda=SharedAgenda(store, run, self._feed, counted),
                    processes=processes,
                    prefetcher=prefetcher,
                    observer=self,
                    report=report,
                )
                loop.work(self._stop)
        except TunerError as e:
            error = str(e)
        except (Exception, SystemExit) as e:  # noqa: BLE001  the boundary of a process: the driver says what it was
            error = in_short(e)
        compiled, compile_s = (processes.pool.compiled, processes.pool.seconds) if processes.pool else (0, 0.0)
        with self._changed:
            self._out.end = End(error, start_s, compiled, compile_s)
            self._changed.notify_all()


def _emptied(items: deque[Item]) -> list[Item]:
    return [items.popleft() for _ in range(len(items))]


class LedgerStore:
    """The driver's store as a node's sweep sees it: a `tuner.sweep.storage.SweepStore`.

    Trials, winners and families are told, and what was told comes before what is asked. Nothing is asked of a problem
    that is new to the database until this node has decided it. If another node did, and a ladder has it played again
    here, its few trials are measured again.
    """

    def __init__(self, node: Node, *, is_shared: bool) -> None:
        """Speak through a node.

        Args:
            node: the node.
            is_shared: whether others may write to the driver's database: then problems are claimed.
        """
        self._node, self._is_shared = node, is_shared
        self._winners: dict[Problem, Winner] = {}

    def record(self, _run: Run, trials: Sequence[Trial], *, again: bool = False) -> None:  # noqa: ARG002
        """See `Store`; the driver's store knows itself whether it has these trials."""
        # The driver reads a thousand nodes' replies: plain values take it a fraction of what objects do.
        self._node.tell("record_rows", tuple(trial_values(trial) for trial in trials))

    def decide(self, run: Run, problem: Problem, kernel: KernelVersion, verdict: Verdict) -> None:
        """See `Store`."""
        self._node.tell("decide", problem, kernel, verdict)
        self._winners[problem] = Winner(
            device=run.device,
            environment=run.environment,
            problem=problem,
            config=verdict.config,
            kernel_version=kernel.version,
            protocol=run.protocol,
            tool_version=run.tool_version,
            decided_at=now(),
            median_us=verdict.median_us,
            default_us=verdict.default_us,
            vendor_us=verdict.vendor_us,
            ties=len(verdict.ties),
            tied=verdict.ties,
            run_id=run.id,
        )

    def record_family(self, _run: Run, family: Family) -> None:
        """See `Store`."""
        self._node.tell("record_family", family)

    def heartbeat(self, _run: Run) -> None:
        """Do nothing: the driver knows which nodes live."""

    is_away = False
    """A node's writes never wait: the driver does."""

    def claim(self, _run: Run, problem: Problem, *, begin: bool = False) -> bool:
        """See `Store`. The driver leases each problem to one node, so that only other runs may have it."""
        return not self._is_shared or bool(self._node.ask("claim", problem, begin=begin))

    def begin_claimed(self, _run: Run, problem: Problem) -> bool:
        """See `Store`."""
        return not self._is_shared or bool(self._node.ask("begin_claimed", problem))

    def release(self, _run: Run, problems: Sequence[Problem]) -> None:
        """See `Store`."""
        if self._is_shared:
            self._node.tell("release", tuple(problems))

    def claimed_by_others(self, _run: Run, problems: Iterable[Problem]) -> dict[Problem, Holder]:
        """See `Store`."""
        found: dict[Problem, Holder] = self._node.ask("claimed_by_others", tuple(problems)) if self._is_shared else {}
        return found

    def settled(
        self,
        device: Device,
        environment: Environment,
        problem: Problem,
        kernels: Iterable[KernelVersion],
        counted: Set[int] | None = None,  # noqa: ARG002  the driver knows those of all its nodes
    ) -> dict[Config, Outcome]:
        """See `Store`. Where not all runs count, the driver counts those of all its nodes."""
        if self._is_new(problem) and problem not in self._winners:
            return {}
        return cast("dict[Config, Outcome]", self._node.ask("settled", device, environment, problem, tuple(kernels)))

    def runs_since(self, name: str) -> frozenset[int]:
        """See `Store`."""
        return cast("frozenset[int]", self._node.ask("runs_since", name))

    def newest_trial_at(self, device: Device, environment: Environment, problem: Problem) -> str | None:
        """See `Store`."""
        return cast("str | None", self._node.ask("newest_trial_at", device, environment, problem))

    def winner(self, device: Device, environment: Environment, problem: Problem) -> Winner | None:
        """See `Store`."""
        found = self._winners.get(problem)
        if found is None and not self._is_new(problem):
            found = self._node.ask("winner", device, environment, problem)
        return found

    def winners(self, *, device_slug: str) -> list[Winner]:
        """See `Store`."""
        return cast("list[Winner]", self._node.ask("winners", device_slug=device_slug))

    def families(self, *, device_slug: str) -> list[DecidedFamily]:
        """See `Store`."""
        return cast("list[DecidedFamily]", self._node.ask("families", device_slug=device_slug))

    def _is_new(self, problem: Problem) -> bool:
        if problem in self._node.unknown:
            return True
        family = problem.group()
        return any(family == each.family for each in self._node.unknown if not isinstance(each, Problem))


class _Warnings(logging.Handler):
    """Passes warnings on to a function."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())
