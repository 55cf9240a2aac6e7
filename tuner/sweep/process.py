"""How child processes are started and ended, and where their output goes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the operating system kill this process when its parent dies, and leave no core file behind.

    A parent that is killed cannot clean up: without this, its children would keep holding the GPU.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Keep Ctrl-C from processes started inside, even while their Python starts: blocked signals are inherited."""
    # multiprocessing starts its tracker with the first child and unblocks the signal when it does.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Have Ctrl-C and SIGTERM wait for the end of the block: what is half ended would end in tracebacks."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    pressed: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in handlers.items() if handler is not None}  # None: no Python's
    for number in held:
        signal.signal(number, lambda number, _frame: pressed.append(number))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
    if pressed:
        signal.raise_signal(pressed[0])


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder for this process, and remove the folders of processes that were killed."""
    # Containers may share /tmp and number their processes separately, so the name holds the namespace of process ids.
    ours = f"tuner-sweep-{Path('/proc/self/ns/pid').stat().st_ino}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{ours}*-*"):
        owner = folder.name.removeprefix(ours).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{ours}{os.getpid()}-", ignore_cleanup_errors=True)


def redirect_output(log: Path) -> None:
    """Send everything this process prints, C++ and MLIR included, to a file: see `last_output_line`."""
    descriptor = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def clear_output() -> None:
    """Empty the log, so that its last line tells about what comes next."""
    for descriptor in (1, 2):
        os.ftruncate(descriptor, 0)


def last_output_line(log: Path) -> str:
    """Return the last line that a dead child printed, as the end of a message: ": LLVM ERROR ...", or ""."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1][:300]}" if lines else ""


def describe_exit(exitcode: int | None) -> str:
    """Say how a process ended: "signal SIGKILL", "exit code 1"."""
    if exitcode is not None and exitcode < 0:
        return f"signal {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"
