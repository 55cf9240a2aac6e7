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
    return error.errno in (errno.ENOENT, errno.ENOTDIR) and _of_cache(error)


def _of_cache(error: OSError) -> bool:
    """Whether an error names a file of Triton's cache, or a folder in which it lies."""
    if not isinstance(error.filename, str):
        return False
    home = os.environ.get("TRITON_HOME") or Path.home()
    folder, named = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache")), Path(error.filename)
    return named in (folder, *folder.parents) or folder in named.parents


def why_uncompiled(error: OSError) -> str:
    """Say what a compile died of that is no config's fault, and what to do."""
    if error.errno == errno.EACCES and error.filename and not _of_cache(error):
        return (
            f"nothing can be compiled ({in_short(error)}): allow this user to use that file, then type the same "
            "command again"
        )
    return (
        f"Triton's cache cannot be written ({in_short(error)}): make room, or set $TRITON_CACHE_DIR to another folder, "
        "then type the same command again"
    )
