"""What every child process of a sweep does first."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, and leave no core file behind.

    A parent that is killed cannot clean up: without this its children would go on holding the GPU.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Processes started inside never see Ctrl-C, not even while their Python starts: a blocked signal is inherited."""
    # multiprocessing starts its tracker with the first child, and unblocks the signal behind our back as it does.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder of this process; those of processes that were killed are removed on the way."""
    # Containers may share /tmp and number their processes each for itself: what lives there is not to be seen here.
    ours = f"tuner-sweep-{Path('/proc/self/ns/pid').stat().st_ino}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{ours}*-*"):
        owner = folder.name.removeprefix(ours).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{ours}{os.getpid()}-", ignore_cleanup_errors=True)


def redirect_output(log: Path) -> None:
    """Send everything this process prints, C++ and MLIR included, to a file: see `last_line`."""
    descriptor = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def forget_output() -> None:
    """Empty the log, so that its last line is of what comes next."""
    for descriptor in (1, 2):
        os.ftruncate(descriptor, 0)


def last_line(log: Path) -> str:
    """The last thing a dead child printed, as the end of a message: ": LLVM ERROR ...", or ""."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1][:300]}" if lines else ""


def death(exitcode: int | None) -> str:
    """How a process ended, in words: "signal SIGKILL", "exit code 1"."""
    if exitcode is not None and exitcode < 0:
        return f"signal {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"
