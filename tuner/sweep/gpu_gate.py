"""What a GPU's workers pass before they use it: several at once, or one alone while it times.

A worker prepares its configs while others prepare theirs. Nobody else uses the GPU while one replays what it times.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_S = 0.0002
"""Short against a replay, 1 ms."""
_SIGN_OF_LIFE_S = 1.0


class GpuGate:
    """One worker's side of the gate. The operating system opens it again for the others when the worker dies."""

    def __init__(self, path: Path, waiting: Callable[[], None]) -> None:
        """Use a lock file that the GPU's workers share; `waiting` is called every second while others use the GPU."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._waiting = waiting

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Use the GPU beside others, none of which times; whatever was launched has to be over at the end."""
        yield from self._pass(fcntl.LOCK_SH)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Use the GPU while nobody else does."""
        yield from self._pass(fcntl.LOCK_EX)

    def _pass(self, operation: int) -> Iterator[None]:
        told = time.monotonic()
        while True:
            try:
                fcntl.flock(self._file, operation | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_POLL_S)
            if time.monotonic() > told + _SIGN_OF_LIFE_S:
                told = time.monotonic()
                self._waiting()
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


class OpenGate:
    """The gate of a worker that has its GPU to itself."""

    def shared(self) -> contextlib.AbstractContextManager[None]:
        """Let it pass."""
        return contextlib.nullcontext()

    alone = shared


Gate = GpuGate | OpenGate
