"""Errors of the machine that a sweep runs on. They say nothing about the config that met them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tuner.errors import in_short

_OF_HOST = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE, errno.EIO)


def host_error_in(error: BaseException | None) -> OSError | None:
    """Return the machine's error that an error is, or was raised from; None where it is none.

    It is a full, unwritable or failing disk, a limit on open files, or a missing folder of Triton's cache.
    """
    while error is not None:
        if isinstance(error, OSError) and (error.errno in _OF_HOST or _misses_cache(error)):
            return error
        error = error.__cause__ or error.__context__
    return None


def _misses_cache(error: OSError) -> bool:
    if error.errno not in (errno.ENOENT, errno.ENOTDIR) or not isinstance(error.filename, str):
        return False
    home = os.environ.get("TRITON_HOME") or Path.home()
    folder, missed = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache")), Path(error.filename)
    return missed in (folder, *folder.parents) or folder in missed.parents


def unwritable_cache(error: OSError) -> str:
    """Say what a compile died of that is no config's fault, and what to do."""
    return (
        f"Triton's cache cannot be written ({in_short(error)}): make room, or set $TRITON_CACHE_DIR to another folder, "
        "then type the same command again"
    )
