"""The standard streams and the signals of a command: what happens where one is closed, or its disk is full."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TextIO

import click


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Run a command so that what cannot be written on stderr is lost, and never ends what the command does.

    stderr carries progress and errors alone: a sweep must not end because the disk under its log is full.
    """
    _occupy_closed()
    before = sys.stderr
    if before is None:  # a shell closed it
        yield
        return
    sys.stderr = _BestEffort(before)
    try:
        yield
    finally:
        sys.stderr = before
        try:
            before.flush()
        except (OSError, ValueError):
            abandon(before)


@contextlib.contextmanager
def handling(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Handle signals by these handlers while the block runs, and then as before."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stop_on_signal(*, fresh: bool = False) -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C (or SIGTERM) sets; a second one raises KeyboardInterrupt.

    Args:
        fresh: whether it stops a run of --fresh.
    """
    instead = "with --fresh-since and its name in `tuner show runs` in place of --fresh " if fresh else ""
    stop = threading.Event()

    def handle(_number: int, _frame: object) -> None:
        if stop.is_set():
            click.echo(f"\nevery finished trial is kept; the same command {instead}goes on from here", err=True)
            raise KeyboardInterrupt
        stop.set()
        click.echo("\nfinishing the trials under way; again to stop at once", err=True)

    with handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM), handle)):
        yield stop


def leave() -> NoReturn:
    """End the process at once, where an exception would do harm."""
    with contextlib.suppress(OSError):  # stderr may be closed
        os.write(2, b"interrupted\n")
    os._exit(130)


def abandon(stream: TextIO | None) -> None:
    """Discard what is still to be written to a stream, because writing it would fail again while Python ends."""
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):  # the stream of a test may be no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _occupy_closed() -> None:
    """Open /dev/null where a shell closed a standard stream, lest a database get its number, and C code's output."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # a worker's streams must not be closed either


class _BestEffort:
    """A stream whose writes never fail."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(OSError, ValueError):
            try:
                self._stream.write(text)
            except RuntimeError:  # a signal's handler writes while the code that it interrupted does: past its buffer
                os.write(self._stream.fileno(), text.encode(errors="backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._stream.flush()
