"""The parent's handle of a child process that owns a device: it listens, watches a clock, kills."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tuner.errors import DeviceError, SweepError
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.store.records import State
from tuner.sweep.messages import Beat, Hello, Refused
from tuner.sweep.process import deaf_to_interrupts, death, last_line, scratch_folder

START_LIMIT_S = 180.0
"""Importing torch and Triton and opening a CUDA context, on a cold disk."""
KILL_LIMIT_S = 10.0
"""A process that outlives SIGKILL for so long is stuck in the driver."""

Serve = Callable[[Connection, "int | None", str], None]
"""What runs in the child: its end of the pipe, the CUDA index (None: the interpreter), the file for its output."""


class WorkerDiedError(Exception):
    """The child ended or was killed; says how, and which config the device was touched for, if any."""

    def __init__(self, state: State, reason: str, config: Config | None) -> None:
        super().__init__(reason)
        self.state = state
        self.config = config


class Child:
    """One child process and the pipe to it. Its first reply is `Hello`, or `Refused`."""

    def __init__(self, serve: Serve, gpu: int | None, *, beat_limit_s: float) -> None:
        """Start the process.

        Args:
            serve: what it runs; a function at the top of a module.
            gpu: CUDA index, None for the interpreter.
            beat_limit_s: the longest it may be silent after a `Beat`.
        """
        self.beat_limit_s = beat_limit_s
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.connection.send(registry.references())  # before it starts: nobody else holds this end
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
            SweepError: the child did not start.
            DeviceError: the device is not there.
        """
        try:
            reply = self.wait()
        except WorkerDiedError as e:
            raise SweepError(f"the worker did not start: {e}") from e
        if isinstance(reply, Refused):
            raise DeviceError(reply.message)
        assert isinstance(reply, Hello)
        return reply

    def ask(self, request: object, limit_s: float) -> None:
        """Send a request; replies come through `receive`.

        Args:
            request: what its `serve` understands.
            limit_s: the longest it may be silent before its first reply.

        Raises:
            WorkerDiedError: the child is gone; no config of the request is to blame.
        """
        self._config = None
        self._await(limit_s)
        try:
            self.connection.send(request)
        except OSError:
            raise self._died() from None

    def receive(self) -> Any:
        """The next reply; call it when `connection` is readable.

        Raises:
            WorkerDiedError: the child ended.
        """
        try:
            reply = self.connection.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if isinstance(reply, Beat):
            self._config = reply.config
            self._limit_s = self.beat_limit_s
        self._await(self._limit_s)
        return reply

    def wait(self) -> Any:
        """The next reply, however long within the limits it takes.

        Raises:
            WorkerDiedError: the child ended, or was silent for too long.
        """
        while not self.connection.poll(0.2):
            self.check_alive()
        return self.receive()

    def check_alive(self) -> None:
        """Kill a child that gave no sign of life within its limit.

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

    def end(self) -> None:
        """Have the process killed, whatever it is doing, and do not wait for it; `kill` comes later."""
        if not self.connection.closed:
            self._process.kill()

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
