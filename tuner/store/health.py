"""Whether a database is sound: its pages, its references, its revision, its schema."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, inspect, select

from tuner.store import models, schema, spool
from tuner.store.column_values import StrayValue
from tuner.store.engine import ANOTHER, Database, locate, opened, writing
from tuner.store.rows import check_row
from tuner.store.writer_lock import lock_file

_NAMED = 5
"""How many damaged rows of a table are named."""
_TIMEOUT_S = 5.0
_CHUNK = 1000  # rows in memory at a time


@dataclass(frozen=True, slots=True)
class Health:
    """What `check` found.

    Attributes:
        location: where the database is, as commands take it; a password is masked.
        revision: that of its schema; None where it is empty.
        head: the revision that this version needs.
        complaints: a sentence for each; a sound database has none.
    """

    location: str
    revision: str | None
    head: str
    complaints: tuple[str, ...]


def check(location: str | None = None, *, another: str = ANOTHER) -> Health:
    """Read a database through and say what is wrong with it; only what a run left for a server is written.

    Args:
        location: a path or a URL; None means `$TUNER_DB`, else the user data folder.
        another: how a message says to name another one, where no `--db` named this.

    Raises:
        StoreError: it is missing, or so damaged that it cannot be read.
        SchemaError: it is no database of triton-tuner.
    """
    with _reading(location, another) as (connection, database):
        pages = _damage(connection) if database.path is not None else []
        found = schema.revision(connection, database)
        if found == schema.HEAD:
            spool.replay(connection.engine, database)
            complaints = (*pages, *schema.drift(connection), *_unreadable_rows(connection))
            return Health(database.label, found, schema.HEAD, complaints)
        refusal = str(schema.refusal(found, database)).removeprefix(f"{database.label} ")
        return Health(database.label, found, schema.HEAD, (*pages, refusal))


def current(location: str | None = None) -> tuple[str, str | None]:
    """A database's location and the revision of its schema, None when it is empty.

    Raises:
        StoreError: it cannot be read, or is no database of triton-tuner.
    """
    with _reading(location) as (connection, database):
        return database.label, schema.revision(connection, database)


def try_writing(location: str | None = None) -> None:
    """Begin to write to a database that is there, as `tuner run` will, and take it back.

    Raises:
        StoreError: it, or a file that belongs beside it, cannot be written, or another process holds its lock.
    """
    database = locate(location)
    with opened(database, read_only=False, timeout_s=_TIMEOUT_S) as engine, writing(engine).connect() as connection:
        if database.path is not None:
            version = connection.exec_driver_sql("PRAGMA user_version").scalar()
            connection.exec_driver_sql(f"PRAGMA user_version = {version}")
            lock = lock_file(database.path)
            if not os.access(lock if lock.exists() else lock.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), lock)
        elif inspect(connection).has_table("trial"):
            connection.exec_driver_sql("UPDATE run SET status = status WHERE false")  # needs the right to
        else:
            connection.exec_driver_sql("CREATE TABLE trial ()")  # which the end of this transaction takes back


@contextmanager
def _reading(location: str | None, another: str = ANOTHER) -> Iterator[tuple[Connection, Database]]:
    """A connection to a database at any revision."""
    database = locate(location, another=another)
    with opened(database, read_only=True) as engine, engine.connect() as connection:
        yield connection, database


def _damage(connection: Connection) -> list[str]:
    found = [" ".join(row[0].split()) for row in connection.exec_driver_sql("PRAGMA integrity_check")]
    return [f"damaged: {sentence}" for sentence in found if sentence != "ok"] + [
        f"row {row[1]} of {row[0]} refers to a row of {row[2]} that is not there"
        for row in connection.exec_driver_sql("PRAGMA foreign_key_check")
    ]


def _unreadable_rows(connection: Connection) -> Iterator[str]:
    """Rows that would be left out where they are listed. A missing column is not reported here: it is drift."""
    inspector = inspect(connection)
    for table in models.metadata.sorted_tables:
        there = inspector.get_columns(table.name) if inspector.has_table(table.name) else []
        if not {column["name"] for column in there}.issuperset(table.columns.keys()):
            continue
        more = -_NAMED
        rows = connection.execute(select(table).order_by(*table.primary_key).execution_options(yield_per=_CHUNK))
        for row in rows.mappings():
            try:
                check_row(table, row)
            except StrayValue as e:
                more += 1
                if more <= 0:
                    yield f"damaged: {e}"
        if more > 0:
            yield f"damaged: {more} more rows of {table.name}"
