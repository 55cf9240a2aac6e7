"""A small copy of a SQLite database: one file with the current winners of some devices and what they rest on."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from sqlalchemy import Column, Connection, delete, select, union, update

from tuner import files
from tuner.errors import StoreError, UsageError
from tuner.location import database_location, sqlite_path
from tuner.store import models
from tuner.store.backup import backup_file
from tuner.store.engine import Database, connect_file, opened, writing
from tuner.store.schema import HEAD

FILE_NAME = "winners.db"
_REFERENCES: tuple[tuple[Column[int], tuple[Column[int], ...]], ...] = (
    (models.trial.c.trial_id, (models.winner.c.trial_id,)),
    (models.run.c.run_id, (models.winner.c.run_id, models.trial.c.run_id, models.family.c.run_id)),
    (models.config.c.config_id, (models.winner.c.config_id, models.trial.c.config_id)),
    (
        models.problem.c.problem_id,
        (
            models.winner.c.problem_id,
            models.trial.c.problem_id,
            models.family.c.problem_id,
            models.family_range.c.problem_id,
        ),
    ),
    (models.kernel.c.kernel_id, (models.config.c.kernel_id,)),
    (models.environment.c.environment_id, (models.winner.c.environment_id, models.run.c.environment_id)),
    (models.device_alias.c.device_id, (models.winner.c.device_id,)),
    (models.device.c.device_id, (models.winner.c.device_id, models.run.c.device_id)),
)
"""A key and the columns that refer to it. Rows that none refers to are removed, in this order."""


def extract(location: str | None, directory: Path, slugs: Collection[str]) -> Path:
    """Copy the current winners of some devices, with the trials behind them, into `winners.db`; returns the file.

    The database is at the head, and may be in use. The copy has no write-ahead log and no free pages, so that it can be
    opened with `immutable=1` wherever it lies. A file of that name is replaced whole, at the end. Commands, hosts
    and nodes of the runs and the trials' GPUs are blanked: what ships is for others to read.

    Raises:
        UsageError: the database is no SQLite file, or the copy would replace it or another that runs have written.
        StoreError, TableError: the copy could not be written; what was there is as it was.
    """
    source = sqlite_path(database_location(location))
    if source is None:
        raise UsageError("--format sqlite copies a SQLite file, and this database is on a server: use --format table")
    files.make_folder(directory)
    target = directory / FILE_NAME
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target} is the database itself: name another folder")
    if target.is_file() and _has_runs(target):
        raise UsageError(f"{target} is a database that runs have written, no export: name another folder")
    try:
        with files.replacing(target) as partial:
            partial.unlink(missing_ok=True)
            try:
                backup_file(source, revision=HEAD, destination=partial)
            except StoreError as e:
                if e.__cause__ is None:
                    raise
                raise StoreError(f"cannot write {target}: {e.__cause__}: name another folder") from e
            with opened(Database(str(target), partial), read_only=False) as engine:
                with writing(engine).connect() as connection:
                    # No index serves these checks: SQLite would read every winner for each trial that goes.
                    connection.connection.cursor().execute("PRAGMA foreign_keys = OFF")
                    with connection.begin():
                        _thin_out(connection, slugs)
                with closing(engine.raw_connection()) as connection:
                    connection.cursor().execute("VACUUM")
    except OSError as e:
        raise StoreError(f"cannot write {target}: {e.strerror}") from e
    return target


def _has_runs(path: Path) -> bool:
    """Whether a file is a database that `tuner run` wrote: an extract says of no run where it was."""
    try:
        with closing(connect_file(path, read_only=True)) as connection:
            return connection.execute("SELECT 1 FROM run WHERE host <> '' LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return False


def _thin_out(connection: Connection, slugs: Collection[str]) -> None:
    wanted = select(models.device.c.device_id).where(models.device.c.slug.in_(slugs))
    winner = models.winner
    others = select(models.family.c.family_id).where(models.family.c.device_id.not_in(wanted))
    current = select(winner.c.winner_id).where(winner.c.superseded_by.is_(None), winner.c.device_id.in_(wanted))
    connection.execute(delete(winner).where(winner.c.winner_id.not_in(current)))
    family, family_range = models.family, models.family_range
    connection.execute(delete(family_range).where(family_range.c.family_id.in_(others)))
    connection.execute(delete(family).where(family.c.device_id.not_in(wanted)))
    connection.execute(delete(models.claim))
    for key, references in _REFERENCES:
        used = union(*(select(column) for column in references)).subquery()
        connection.execute(delete(key.table).where(key.not_in(select(*used.c))))
    connection.execute(update(models.run).values(argv="[]", host="", node=None))
    connection.execute(update(models.trial).values(gpu_uuid=None))
