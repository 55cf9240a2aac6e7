"""A GPU has one measurer on its host: a lock by its UUID, whoever measures and whatever database keeps the figures.

Two processes that measure on one GPU at once spoil each other's figures, which no figure shows afterwards.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path

from tuner.errors import DeviceError

# Not `tempfile.gettempdir()`, which a job's or a user's environment moves.
FOLDER = Path("/tmp")
"""Where the lock files are: a folder that all users of a host share."""
_POLL_S = 0.2

_log = logging.getLogger(__name__)


class GpuBusyError(DeviceError):
    """Another process measures on the GPU."""


def hold(gpus: Iterable[str | None], *, wait: bool = True, stop: threading.Event | None = None) -> ExitStack:
    """Lock GPUs until the stack that is returned closes, or this process ends, however it ends.

    Where another process holds one, one warning names it, and this waits. Where the lock file cannot be used, one
    warning says so, and nobody is kept out.

    Args:
        gpus: their UUIDs ("GPU-..."); None, the interpreter, needs no lock.
        wait: whether to wait.
        stop: ends the wait once it is set.

    Raises:
        GpuBusyError: another process holds a GPU, and `wait` is False.
        KeyboardInterrupt: `stop` was set.
    """
    with ExitStack() as stack:
        # In one order everywhere, so that two processes with two GPUs never wait for each other.
        for uuid in sorted({uuid for uuid in gpus if uuid is not None}):
            try:
                stack.enter_context(_locked(FOLDER / f"triton-tuner-gpu-{uuid}.lock", uuid, wait, stop))
            except OSError as e:
                _log.warning("%s is not locked, so others may measure on it too and spoil the figures: %s", uuid, e)
        return stack.pop_all()


def _locked(path: Path, uuid: str, wait: bool, stop: threading.Event | None) -> FileIO:
    """Return the lock's file, open and locked; OSError where there can be none."""
    warned = False
    while stop is None or not stop.is_set():
        with ExitStack() as unless_locked:
            file = unless_locked.enter_context(_open(path))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                digits = file.read(20)
                holder = f"process {int(digits)}" if digits.isdigit() else "another process"
                if not wait:
                    raise GpuBusyError(f"{uuid} is measured on by {holder}") from None
                if not warned:
                    _log.warning("%s is measured on by %s: waiting until that ends; Ctrl-C ends the wait", uuid, holder)
                    warned = True
            else:
                unless_locked.pop_all()
                with suppress(OSError):  # where the disk is full the lock holds all the same, and says less
                    file.truncate(0)
                    # This also keeps the file young: systems remove old ones there.
                    file.write(f"{os.getpid()}".encode())
                return file
        time.sleep(_POLL_S)
    raise KeyboardInterrupt


def _open(path: Path) -> FileIO:
    """Open a lock file that every user may write, and no link or pipe that somebody laid in its place."""
    flags = os.O_RDWR | os.O_NOFOLLOW
    with suppress(FileExistsError):
        made = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        os.fchmod(made, 0o666)  # whatever the umask is
        os.close(made)
    # Without O_CREAT: Linux refuses that flag for another user's file in such a folder (fs.protected_regular).
    file = FileIO(os.open(path, flags), "r+")
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        file.close()
        raise OSError(errno.EPERM, "not a file of its own", str(path))
    return file
