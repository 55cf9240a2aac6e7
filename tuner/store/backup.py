"""Copies of a SQLite database, taken while it is in use."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

from tuner import files
from tuner.errors import StoreError
from tuner.store.engine import connect_file


def backup_file(path: Path, *, revision: str | None, destination: Path | None = None) -> Path:
    """Copy a SQLite database by its online backup; the copy is one file, complete or not made at all.

    Args:
        path: the database.
        revision: its schema's revision, a part of the copy's name.
        destination: the copy, or a folder for it; beside the database when None.

    Returns:
        The copy: `tuner.0001.20260131T120000Z.db` for `tuner.db`, unless `destination` named a file.

    Raises:
        StoreError: the database is damaged, the copy's name is taken, or it could not be written.
    """
    now = datetime.now(timezone.utc)
    name = f"{path.stem}.{revision or 'empty'}.{now:%Y%m%dT%H%M%SZ}{path.suffix or '.db'}"
    target = path.with_name(name) if destination is None else destination
    files.check_regular(target, "backup", error=StoreError)
    if target.is_dir():
        target = target / name
    if target.exists():
        raise StoreError(f"{target} is there already: name another file for the backup")
    if not target.parent.is_dir():
        raise StoreError(
            f"no backup of {path} could be written to {target}: there is no folder {target.parent}: make it"
        )
    try:
        with (
            files.replacing(target) as partial,
            closing(connect_file(path, read_only=True)) as source,
            closing(sqlite3.connect(partial)) as copy,
        ):
            copy.execute("PRAGMA journal_mode = OFF")  # on a full disk it would stay beside the copy that goes
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
            if found := _damage(copy):
                raise StoreError(f"{path}: damaged, so it was not copied: restore a backup ({found})")
    except (sqlite3.Error, OSError) as e:
        raise StoreError(f"no backup of {path} could be written to {target} ({e}): name another place for it") from e
    return target


def _damage(copy: sqlite3.Connection) -> str | None:
    """What is wrong with a database's pages, in a line; None where nothing is."""
    try:
        ((found,),) = copy.execute("PRAGMA integrity_check(1)").fetchall()
    except sqlite3.DatabaseError as e:
        return str(e)
    return None if found == "ok" else " ".join(found.split())
