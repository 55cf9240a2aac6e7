"""The parent's handle of a child process that owns a device: it takes replies, watches deadlines, and kills."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tuner.errors import DeviceError, SweepError
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.store.records import State
from tuner.sweep.messages import Heartbeat, Hello, Importing, Refused
from tuner.sweep.process import describe_exit, interrupts_blocked, last_output_line, scratch_folder

START_LIMIT_S = 180.0
"""Time to import torch and Triton from a cold disk and to open a CUDA context."""
IMPORT_LIMIT_S = 60.0
"""Time to import the modules of the user's kernels after that."""
NOTICE_S = 10.0
"""A child that is silent for this long causes a warning."""
KILL_LIMIT_S = 10.0
"""A process that outlives SIGKILL for this long is stuck in the driver."""

_log = logging.getLogger(__name__)

Serve = Callable[[Connection, "int | None", str], None]
"""What runs in the child: its end of the pipe, the CUDA index (None: the interpreter), the file for its output."""


class WorkerDiedError(Exception):
    """The child ended or was killed; says how, and with which config it last used the device, if any."""

    def __init__(self, state: State, reason: str, config: Config | None) -> None:
        super().__init__(reason)
        self.state = state
        self.config = config


class Child:
    """One child process and the pipe to it. Its first reply after `Imported` and `Importing` is `Hello` or `Refused`.

    Once it ended, or was silent for too long and killed, `ask`, `open`, `receive`, `wait` and `check_alive` raise
    WorkerDiedError.
    """

    def __init__(self, serve: Serve, gpu: int | None, *, heartbeat_limit_s: float, opens: bool = True) -> None:
        """Start a process that runs `serve`, and may be silent for `heartbeat_limit_s` after a `Heartbeat`.

        Without `opens` it says `Imported` and leaves the device alone until `open` is called.
        """
        self.heartbeat_limit_s = heartbeat_limit_s
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        if opens:
            self.connection.send(registry.references())  # before the child starts, while nobody else holds this end
        self._scratch = scratch_folder()
        self._log = Path(self._scratch.name) / "output"
        arguments = (theirs, gpu, str(self._log))
        self._process = context.Process(target=serve, args=arguments, name=f"tuner-worker-{gpu}", daemon=True)
        with interrupts_blocked():
            self._process.start()
        theirs.close()
        self._config: Config | None = None
        self._doing = "its start"
        self._warned = False
        self._set_deadline(START_LIMIT_S)

    def hello(self, stop: threading.Event | None = None) -> Hello:
        """Wait until the child has opened its device; a child that does not is killed.

        Raises:
            KeyboardInterrupt: `stop` was set.
            SweepError: the child did not start.
            DeviceError: the device is not there.
        """
        try:
            while isinstance(reply := self.wait(stop), Importing):
                pass
            if isinstance(reply, Refused):
                raise DeviceError(reply.message)
        except WorkerDiedError as e:
            raise SweepError(f"the worker did not start: {e} (during {self._doing})") from e
        except BaseException:
            self.kill()
            raise
        assert isinstance(reply, Hello)
        return reply

    def ask(self, request: object, limit_s: float) -> None:
        """Send a request, to which the first reply must come within `limit_s`; replies come through `receive`."""
        self._config, self._doing, self._warned = None, "the inputs and reference of a problem", False
        self._send(request, limit_s)

    def open(self) -> None:
        """Have a child that said `Imported` open its device."""
        self._send(registry.references(), START_LIMIT_S)

    def _send(self, request: object, limit_s: float) -> None:
        self._set_deadline(limit_s)
        try:
            self.connection.send(request)
        except OSError:
            raise self._died() from None

    def receive(self) -> Any:
        """Return the next reply; call it when `connection` is readable."""
        try:
            reply = self.connection.recv()
        except (EOFError, OSError):
            raise self._died() from None
        if isinstance(reply, Heartbeat):
            self._config = reply.config
            self._doing = "several configs" if reply.config is None else str(reply.config)
            self._limit_s = self.heartbeat_limit_s
        elif isinstance(reply, Importing):
            self._doing, self._warned = f"the import of {', '.join(reply.kernels)}", False
            self._limit_s = IMPORT_LIMIT_S
        self._set_deadline(self._limit_s)
        return reply

    def wait(self, stop: threading.Event | None = None) -> Any:
        """Wait for the next reply within the child's time limits; KeyboardInterrupt once `stop` is set."""
        while not self.connection.poll(0.2):
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            self.check_alive()
        return self.receive()

    def check_alive(self) -> None:
        """Kill the child if it gave no sign of life within its limit; warn before, once a request."""
        now = time.monotonic()
        if now > self._deadline and not self.connection.poll():
            self.kill()
            reason = f"no sign of life for {self._limit_s:g} s, killed"
            raise WorkerDiedError(State.TIMEOUT, reason, self._config)
        if not self._warned and now > self._heard + NOTICE_S:
            self._warned = True
            _log.warning("the worker is silent during %s: it is killed in %.0f s", self._doing, self._deadline - now)

    def extend_deadline(self, seconds: float) -> None:
        """Give the child more time, for instance because the parent itself was stopped and could not listen."""
        self._deadline += seconds
        self._warned = True  # this silence is expected

    def send_kill(self) -> None:
        """Send SIGKILL and do not wait for the end; `kill` comes later."""
        if not self.connection.closed:
            self._process.kill()

    def kill(self) -> None:
        """End the process whatever it is doing, even if it is stopped.

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

    def _set_deadline(self, limit_s: float) -> None:
        self._heard = time.monotonic()
        self._limit_s, self._deadline = limit_s, self._heard + limit_s

    def _died(self) -> WorkerDiedError:
        self._process.join(5)
        how = f"worker died with {describe_exit(self._process.exitcode)}{last_output_line(self._log)}"
        self.kill()
        return WorkerDiedError(State.CRASHED, how, self._config)
