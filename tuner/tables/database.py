"""Winners as a SQLite database that ships: one file, without a log, readable from read-only media."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tuner import files
from tuner.errors import StoreError, UsageError
from tuner.location import database_location, sqlite_path
from tuner.store import extract

FILE_NAME = "winners.db"


def write(location: str | None, directory: Path, slugs: Collection[str]) -> Path:
    """Copy the current winners of some devices, with the trials behind them, into `winners.db`; returns the file.

    Command lines and host names of the runs are blanked: what ships is for others to read.

    Args:
        location: where the database is, see `tuner.location.database_location`.
        directory: made when missing.
        slugs: the devices.

    Raises:
        UsageError: the database is no SQLite file, or the copy would replace it.
        StoreError, TableError: the copy cannot be made.
    """
    given = database_location(location)
    source = sqlite_path(given)
    if source is None:
        raise UsageError("--format sqlite copies a SQLite file, and this database is on a server: use --format table")
    files.make_folder(directory)
    target = directory / FILE_NAME
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target} is the database itself: name another folder")
    try:
        extract.extract(source, target, slugs)
    except OSError as e:
        raise StoreError(f"cannot write {target}: {e.strerror}") from e
    return target
