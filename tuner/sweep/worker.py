"""A GPU's worker: the one process that touches it. The parent never does; it watches a clock, kills, starts another."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tuner import registry
from tuner.config import Config
from tuner.device import INTERPRETER, Device, Environment
from tuner.errors import DeviceError, SweepError
from tuner.records import State
from tuner.sweep.messages import (
    Beat,
    FinalsPlayed,
    Hello,
    Idle,
    Measure,
    PlayFinals,
    Ready,
    Refused,
    Reply,
    Request,
    Result,
    SetProblem,
)
from tuner.sweep.process import (
    deaf_to_interrupts,
    death,
    die_with_parent,
    forget_output,
    last_line,
    redirect_output,
    scratch_folder,
)

START_LIMIT_S = 180.0
"""Importing torch and Triton and opening a CUDA context, on a cold disk."""
PROBLEM_LIMIT_S = 180.0
"""Making inputs and a float64 reference."""
TRIAL_LIMIT_S = 30.0
"""Between two signs of life while a config runs; the interpreter's children get four times as much."""


KILL_LIMIT_S = 10.0
"""A process that outlives SIGKILL for so long is stuck in the driver."""


class WorkerDiedError(Exception):
    """The worker ended or was killed; says how, and which config the device was touched for, if any."""

    def __init__(self, state: State, reason: str, config: Config | None) -> None:
        super().__init__(reason)
        self.state = state
        self.config = config


class Worker:
    """The parent's handle of one worker process."""

    def __init__(self, gpu: int | None) -> None:
        """Start the process; its first reply is `Hello`, or `Refused`.

        Args:
            gpu: CUDA index, None for the interpreter.
        """
        self._trial_limit_s = TRIAL_LIMIT_S if gpu is not None else 4 * TRIAL_LIMIT_S
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._scratch = scratch_folder()
        self._log = Path(self._scratch.name) / "output"
        arguments = (theirs, gpu, str(self._log))
        self._process = context.Process(target=serve, args=arguments, name=f"tuner-worker-{gpu}", daemon=True)
        with deaf_to_interrupts():
            self._process.start()
        theirs.close()
        self._config: Config | None = None
        self._await(START_LIMIT_S)

    def hello(self) -> Hello:
        """Wait for the device and the environment.

        Raises:
            SweepError: the worker did not start.
            DeviceError: the device is not there.
        """
        try:
            while not self.connection.poll(0.2):
                self.check_alive()
            reply = self.receive()
        except WorkerDiedError as e:
            raise SweepError(f"the worker did not start: {e}") from e
        if isinstance(reply, Refused):
            raise DeviceError(reply.message)
        assert isinstance(reply, Hello)
        return reply

    def send(self, request: Request) -> None:
        """Ask for something; replies come through `receive`.

        Raises:
            WorkerDiedError: the worker is gone; no config of the request is to blame.
        """
        self._config = None
        # Until the first Beat it makes inputs and a reference, if it is not ready to touch the device for a config.
        self._await(self._trial_limit_s if isinstance(request, Measure) else PROBLEM_LIMIT_S)
        try:
            self.connection.send(request)
        except OSError:
            raise self._died() from None

    def receive(self) -> Reply:
        """The next reply; call it when `connection` is readable.

        Raises:
            WorkerDiedError: the worker ended.
        """
        try:
            reply: Reply = self.connection.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if isinstance(reply, Beat):
            self._config = reply.config
            self._limit_s = self._trial_limit_s
        self._await(self._limit_s)
        return reply

    def check_alive(self) -> None:
        """Kill a worker that gave no sign of life within its limit.

        Raises:
            WorkerDiedError: it was silent for too long.
        """
        if time.monotonic() > self._deadline and not self.connection.poll():
            self.kill()
            reason = f"no sign of life for {self._limit_s:g} s, killed"
            raise WorkerDiedError(State.TIMEOUT, reason, self._config)

    def excuse(self, seconds: float) -> None:
        """Give it more time: the parent itself was stopped or blocked for so long and could not listen."""
        self._deadline += seconds

    def kill(self) -> None:
        """End the process, whatever it is doing; a stopped one too.

        Raises:
            SweepError: not even SIGKILL ends it.
        """
        if self.connection.closed:
            return
        self._process.kill()
        self._process.join(KILL_LIMIT_S)
        if self._process.is_alive():
            raise SweepError(f"worker {self._process.pid} outlives SIGKILL: its GPU's driver hangs, see `dmesg`")
        self.connection.close()
        self._scratch.cleanup()

    def _await(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s

    def _died(self) -> WorkerDiedError:
        self._process.join(5)
        how = f"worker died with {death(self._process.exitcode)}{last_line(self._log)}"
        self.kill()
        return WorkerDiedError(State.CRASHED, how, self._config)


def serve(connection: Connection, gpu: int | None, log: str) -> None:
    """Run in the child: answer requests until the pipe closes; what anything prints goes into the log."""
    die_with_parent()
    redirect_output(Path(log))
    # Ctrl-C and a batch system's SIGTERM go to the whole group: the parent handles them, and ends the worker when it is
    # ready.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if gpu is None:
        # Read when Triton is imported and when a kernel is decorated: neither has happened in this fresh process.
        os.environ["TRITON_INTERPRET"] = "1"
    with contextlib.suppress(EOFError, BrokenPipeError), contextlib.ExitStack() as stack:
        try:
            bench = _Bench(gpu, stack)
        except DeviceError as e:
            connection.send(Refused(str(e)))
            return
        connection.send(bench.hello)
        while bench.answer(connection.recv(), connection):
            pass


class _Bench:
    """The child's side: a device, its timer and clocks, and the problem at hand."""

    def __init__(self, gpu: int | None, stack: contextlib.ExitStack) -> None:
        from tuner.sweep import clocks
        from tuner.sweep.bench import GraphTimer, HostTimer, Timer

        self.timer: Timer
        if gpu is None:
            self.torch_device, self.timer = "cpu", HostTimer()
            self.hello = Hello(INTERPRETER, _environment("interpreter"))
            self.clocks = clocks.Clocks()
        else:
            self.torch_device = "cuda"
            device, backend, uuid = _open_gpu(gpu, stack)
            self.timer = GraphTimer(device.l2_bytes)
            self.clocks = stack.enter_context(clocks.watch(uuid))
            self.hello = Hello(device, _environment(backend, clocks.driver_version()))
        self.measurement: Any = None

    def answer(self, request: Request, connection: Connection) -> bool:
        """Carry out one request; False when the process must end."""
        from tuner.sweep.measure import PoisonedError

        def beat(config: Config | None) -> None:
            forget_output()
            connection.send(Beat(config))

        try:
            if isinstance(request, SetProblem):
                connection.send(self._set_problem(request))
            elif isinstance(request, Measure):
                for config, outcome in self.measurement.search(request.configs, beat):
                    connection.send(Result(config, outcome))
                connection.send(Idle())
            elif isinstance(request, PlayFinals):
                connection.send(self._play(request, beat))
        except PoisonedError as e:
            connection.send(Result(e.config, e.outcome))
            connection.send(Idle(poisoned=True))
            return False
        return True

    def _set_problem(self, request: SetProblem) -> Reply:
        import torch

        from tuner.sweep.measure import Measurement

        self.measurement = None
        torch.cuda.empty_cache()
        spec = registry.serving(request.problem, self.hello.device)[0]
        try:
            self.measurement = Measurement(spec, request.problem, self.timer, self.clocks, self.torch_device)
        except (torch.cuda.OutOfMemoryError, MemoryError) as e:
            return _too_large(e)
        return Ready()

    def _play(self, request: PlayFinals, beat: Callable[[Config | None], None]) -> Reply:
        import torch

        try:
            return FinalsPlayed(*self.measurement.finals(request.finalists, seed=request.seed, beat=beat))
        except (torch.cuda.OutOfMemoryError, MemoryError) as e:
            return _too_large(e)


def _too_large(error: BaseException) -> Refused:
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return Refused(f"operands and reference do not fit into memory: {first_line}")


def _open_gpu(gpu: int, stack: contextlib.ExitStack) -> tuple[Device, str, str | None]:
    import torch

    from tuner import device as devices

    device = devices.current(gpu)
    torch.cuda.set_device(gpu)
    stack.enter_context(torch.cuda.stream(torch.cuda.Stream()))
    backend = f"hip {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}"
    uuid = getattr(torch.cuda.get_device_properties(gpu), "uuid", None)
    return device, backend, f"GPU-{uuid}" if uuid and not torch.version.hip else None


def _environment(backend: str, driver: str = "") -> Environment:
    import torch
    import triton

    return Environment(triton.__version__, torch.__version__, backend, driver, platform.python_version())
