"""Compiles configs in child processes while the GPU measures, and lists search spaces there.

A compile can raise, print 40 KB of PTX, abort the process or hang. Each runs in a child process with a time limit and
output of its own; the binary goes into Triton's cache, where the GPU's worker finds it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import heapq
import itertools
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from enum import IntEnum
from multiprocessing import forkserver
from pathlib import Path
from typing import ParamSpec, TypeVar

import pebble

from tuner.errors import KernelError, SweepError, in_short
from tuner.hardware.device import Device
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import State
from tuner.sweep import compile_child, process
from tuner.sweep.compile_child import Compiled, CompileResult, Failed, compile_config
from tuner.sweep.host_errors import host_error_in, why_uncompiled

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
TIME_LIMIT_S = 60.0
"""The time limit of one compile. Even the largest tiles take seconds; a compile that takes longer hangs."""
_MAX_RESTARTS = 3
_POLL_S = 0.2
_WAIT_S = 0.02
_START_S = 5.0
"""How long the end of a pool waits for children that are still starting."""
_TASKS_PER_CHILD = 2
"""Tasks given to each child at a time: one at work, one to go on with. The rest wait here by urgency.

Only what a GPU needs now is given to go on with: it would wait for the whole of anything that was given before it.
"""
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
_TIMED_OUT = (TimeoutError, concurrent.futures.TimeoutError)  # one class from Python 3.11 on


class Urgency(IntEnum):
    """How soon a binary is needed; the lowest is compiled first."""

    NOW = 0
    """A GPU works on the problem."""
    BESIDE = 1
    """A GPU works on the problem, and on an older one."""
    NEXT = 2
    """The problem is next."""
    SPARE = 3
    """A search may need it."""


def cpu_count() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_fork_server() -> None:
    """Start the process that compile children are forked from, with their imports done."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["tuner.sweep.preload"])
    with process.interrupts_blocked():
        forkserver.ensure_running()


def _end_fork_server() -> None:
    """End the process of `start_fork_server` where it still imports: its children could be ended only once they start.

    The next pool starts another.
    """
    if (pid := forkserver._forkserver._forkserver_pid) is not None:  # type: ignore[attr-defined]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class CompilePool(AbstractContextManager["CompilePool"]):
    """Child processes that compile for one device. Each binary is compiled once, however often it is requested."""

    def __init__(self, device: Device, *, workers: int | None = None, time_limit_s: float = TIME_LIMIT_S) -> None:
        """Start the children, which takes seconds; requests made meanwhile wait for them.

        Args:
            device: what to compile for.
            workers: how many children; by default all cores but one, which the GPU's worker needs.
            time_limit_s: the time limit of one compile, seconds.
        """
        self.workers = workers or max(1, cpu_count() - 1)
        self.arch = device.arch
        self._time_limit_s = time_limit_s
        self._scratch = process.scratch_folder()
        self._results: dict[str, CompileResult] = {}
        self._requested: dict[str, tuple[str, str, Problem, Config]] = {}
        self._queue: list[tuple[Urgency, int, str]] = []  # a heap: urgency, order of requests, key
        self._queued: dict[str, Urgency] = {}
        self._order = itertools.count()
        self._scheduled = self._ended = 0  # tasks of the children of today
        self._at_work: dict[str, concurrent.futures.Future[CompileResult]] = {}
        self._lost: deque[str] = deque()  # keys whose child died: `recover` schedules them again
        self._tried_again: set[str] = set()  # keys whose child was killed once, from outside
        self._broken = False  # whether `recover` has to start other children
        self._host_error: OSError | None = None
        self._restarts = 0
        self._first_request = self._last_done = 0.0
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="tuner-compile")
        self._pool = self._starter.submit(self._start)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with process.interrupts_held():  # children that still start take seconds to end
            if kind is not None and not self._pool.done():
                _end_fork_server()
            with contextlib.suppress(BrokenProcessPool):  # of children that could not start
                self._stop()
            self._starter.shutdown()
            self._scratch.cleanup()

    @property
    def compiled(self) -> int:
        """How many requested binaries were made; what did not compile is none of them."""
        return sum(isinstance(result, Compiled) for result in list(self._results.values()))

    @property
    def waiting(self) -> int:
        """How many requested binaries are not done."""
        return len(self._requested) - len(self._results)

    @property
    def seconds(self) -> float:
        """Wall time from the first request to the last result."""
        return max(0.0, self._last_done - self._first_request)

    def request(self, spec: KernelSpec, problem: Problem, config: Config, urgency: Urgency = Urgency.NOW) -> str:
        """Have a config's binary compiled unless it was requested before; return the key of its result.

        A second request with more urgency moves it forward in the queue.

        Raises:
            KernelError: `compile_class` of the kernel failed.
        """
        key = f"{spec.op}/{spec.name}/{registry.ask(spec, 'compile_class', problem, config)}"
        if key in self._requested:
            self.hasten(key, urgency)
        else:
            self._first_request = self._first_request or time.monotonic()
            self._requested[key] = (spec.op, spec.name, problem, config)
            self._enqueue(key, urgency)
        return key

    def hasten(self, key: str, urgency: Urgency) -> None:
        """Move a binary forward in the queue that was requested with less urgency; finding its key anew takes long."""
        if urgency < self._queued.get(key, Urgency.NOW):
            self._enqueue(key, urgency)

    def _enqueue(self, key: str, urgency: Urgency) -> None:
        self._queued[key] = urgency
        heapq.heappush(self._queue, (urgency, next(self._order), key))
        self._schedule_waiting()

    def result(self, key: str) -> CompileResult | None:
        """Return the result under a key, None while there is none yet."""
        self._schedule_waiting()
        return self._results.get(key)

    def compile_all(
        self, asked: Iterable[tuple[Problem, Config]], progress: Callable[[int], object] = lambda _left: None
    ) -> dict[tuple[Problem, Config], str]:
        """Compile configs of problems, tell `progress` how many are left; return why some of them do not compile.

        Compiling begins with the first one, while the others are being listed.

        Raises:
            SweepError: see `recover`.
        """
        keys, refused = {}, {}
        for problem, config in asked:
            self.recover()
            progress(self.waiting)
            try:
                spec = registry.find(problem.op, config.kernel, problem.source)
                keys[problem, config] = self.request(spec, problem, config)
            except (KernelError, NotImplementedError) as e:  # a problem of somebody's kernel that it cannot make
                refused[problem, config] = in_short(e)
        while self.waiting:
            self.recover()
            self._schedule_waiting()
            progress(self.waiting)
            time.sleep(_WAIT_S)
        results = {each: self.result(key) for each, key in keys.items()}
        return refused | {each: result.message for each, result in results.items() if isinstance(result, Failed)}

    def call(
        self, function: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Result | None:
        """Run a module's function in a child; return its result, or None where no child ran it to its end.

        Raises:
            Exception: what the function raised.
        """
        if not self._pool.done():
            return None  # they are still starting
        pool = self._pool.result()
        try:
            future = pool.schedule(function, args=args, kwargs=kwargs, timeout=self._time_limit_s)
        except RuntimeError:
            return None  # its children are all gone
        while not future.done() and pool.active:
            concurrent.futures.wait([future], timeout=_POLL_S)
        try:
            result: _Result = future.result(timeout=0)
        except (pebble.ProcessExpired, BrokenProcessPool, concurrent.futures.CancelledError, *_TIMED_OUT):
            return None
        return result

    def recover(self) -> None:
        """Restart children that died and schedule their lost tasks again; call it now and then.

        Raises:
            SweepError: the children die again and again before they can compile anything, or cannot write what they
                compiled: no config is to blame for that.
        """
        if self._host_error is not None:
            raise SweepError(why_uncompiled(self._host_error))
        if self._at_work and self._pool.done() and not self._pool.result().active:
            self._broken = True
        if self._broken:
            if self._restarts >= _MAX_RESTARTS:
                raise SweepError(
                    f"compile processes die as soon as they start{self._last_output()}; type `tuner doctor`"
                )
            self._restarts += 1
            self._stop()
            # A task that came while the pool broke is neither done nor given up by it.
            self._lost.extend(self._at_work)
            self._at_work.clear()
            self._pool = self._starter.submit(self._start)
            self._broken = False
            self._scheduled = self._ended = 0
        for _ in range(len(self._lost)):
            self._schedule(self._lost.popleft())

    def _start(self) -> pebble.ProcessPool:
        start_fork_server()
        pool = pebble.ProcessPool(
            max_workers=self.workers,
            initializer=compile_child.start,
            initargs=(self.arch, self._scratch.name, list(sys.path), registry.references()),
            context=multiprocessing.get_context("forkserver"),
        )
        pool.schedule(os.getpid)  # starts the children, once the fork server is ready
        return pool

    def _stop(self) -> None:
        pool = self._pool.result()
        # Pebble removes the locks first: a child that still starts would end in a traceback on the user's screen.
        until = time.monotonic() + _START_S
        while pool.active and time.monotonic() < until and len(self._logs()) < self.workers:
            time.sleep(_WAIT_S)
        pool.stop()
        pool.join()

    def _logs(self) -> list[Path]:
        """One for each child that has started."""
        return list(Path(self._scratch.name).glob("*.log"))

    def _schedule_waiting(self) -> None:
        if not self._pool.done():
            return
        while self._queue:
            per_child = _TASKS_PER_CHILD if self._queue[0][0] is Urgency.NOW else 1
            if self._scheduled - self._ended >= per_child * self.workers:
                break
            _, _, key = heapq.heappop(self._queue)
            # A task that moved forward is in the queue twice.
            if self._queued.pop(key, None) is not None:
                self._schedule(key)

    def _schedule(self, key: str) -> None:
        self._scheduled += 1
        try:
            pool = self._pool.result()
            future = pool.schedule(compile_config, args=self._requested[key], timeout=self._time_limit_s)
        except RuntimeError:
            # Pebble raises this for a pool whose children are all gone.
            self._lost.append(key)
            self._broken = True
        else:
            self._at_work[key] = future
            future.add_done_callback(functools.partial(self._finish, key))

    def _finish(self, key: str, future: concurrent.futures.Future[CompileResult]) -> None:
        # Called in the pool's own thread; its operations on dicts and deques are atomic.
        self._at_work.pop(key, None)
        if future.cancelled():
            return
        self._ended += 1
        self._last_done = time.monotonic()
        error = future.exception()
        if error is None:
            self._restarts = 0
            self._results[key] = future.result()
        elif isinstance(error, BrokenProcessPool):
            self._lost.append(key)
            self._broken = True
        elif isinstance(error, _TIMED_OUT):
            self._results[key] = Failed(State.TIMEOUT, f"compile took more than {self._time_limit_s:g} s")
        elif getattr(error, "exitcode", 0) in _KILLED and key not in self._tried_again:
            # Killed from outside, for instance by the system out of memory. The config gets a second chance.
            self._tried_again.add(key)
            self._lost.append(key)
        elif (host_error := host_error_in(error)) is not None:
            self._host_error = host_error
        else:
            state = State.CRASHED if getattr(error, "exitcode", 0) in _KILLED else State.COMPILE_ERROR
            self._results[key] = Failed(state, self._failure_message(error))

    def _failure_message(self, error: BaseException) -> str:
        exitcode, pid = getattr(error, "exitcode", None), getattr(error, "pid", None)
        if exitcode is None:
            return f"{type(error).__name__}: {error}"
        log = Path(self._scratch.name) / f"{pid}.log"
        return f"compiler died with {process.describe_exit(exitcode)}{process.last_output_line(log)}"

    def _last_output(self) -> str:
        logs = sorted(self._logs(), key=lambda log: log.stat().st_mtime)
        return process.last_output_line(logs[-1]) if logs else ""
