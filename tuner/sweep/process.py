"""What every child process of a sweep does first."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, and leave no core file behind. Linux only; else nothing.

    A parent that is killed cannot clean up: without this its children would go on holding the GPU.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def redirect_output(log: Path) -> None:
    """Send everything this process prints, C++ and MLIR included, to a file: see `last_line`."""
    descriptor = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


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
