"""One sweep at a time writes to a SQLite file: a second one would measure what the first is measuring."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tuner.errors import StoreError


def lock_file(path: Path) -> Path:
    """The lock file of a database's file: one, by whichever link the file is reached."""
    return Path(f"{os.path.realpath(path)}.lock")


@contextmanager
def sole_writer(path: Path, label: str) -> Iterator[bool]:
    """Hold the lock file beside a database, or raise StoreError where another process holds it.

    The system releases it when the process ends, however it ends. Yields whether the file system has locks.
    """
    held = False
    with lock_file(path).open("a") as file:
        # A file system without locks (some network mounts) raises other errors: SQLite's own locks keep the file whole.
        with suppress(OSError):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                raise StoreError(
                    f"another `tuner run` or `tuner merge` is writing to {label}: wait until it has ended, or name "
                    "another database"
                ) from None
        yield held
