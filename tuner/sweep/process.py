"""What every child process of a sweep does first."""

from __future__ import annotations

import ctypes
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, and leave no core file behind. Linux only; else nothing.

    A parent that is killed cannot clean up: without this its children would go on holding the GPU.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
