"""Several databases made one: the destination gains the rows it lacks, then every place has its winner decided again.

What the result holds depends on the rows alone, not on the order of the sources; merging again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from tuner.errors import UsageError
from tuner.store import reconcile, schema, spool
from tuner.store.engine import BUSY_TIMEOUT_S, Database, faults, locate, open_engine, opened, settle_journal, writing
from tuner.store.merge_rows import Conflict, Destination, Source
from tuner.store.rows import LeftOut
from tuner.store.writer_lock import sole_writer

__all__ = ["Added", "Conflict", "Merged", "merge"]


@dataclass(frozen=True, slots=True)
class Added:
    """How many rows a source brought, by table: those that the destination and the sources before it lacked."""

    location: str
    rows: dict[str, int]


@dataclass(frozen=True, slots=True)
class Merged:
    """What `merge` did.

    Attributes:
        location: where the destination is.
        added: one a source, in the order given.
        winners: current winners now.
        replaced: winners that were current in the destination and are history now.
        conflicts: where the databases disagreed.
    """

    location: str
    added: tuple[Added, ...]
    winners: int
    replaced: int
    conflicts: tuple[Conflict, ...]


def merge(destination: str, sources: Sequence[str], *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Merged:
    """Bring the rows of other databases into one, in one transaction.

    Args:
        destination: a path or a URL; made when it is missing.
        sources: paths or URLs; they are only read.
        busy_timeout_s: how long to wait for another process's lock on a SQLite file, seconds.

    Raises:
        UsageError: a source is the destination itself.
        SchemaError: one of them is behind (the message holds the command), ahead, empty or somebody else's.
        StoreError: one of them is missing, locked or damaged, or another process writes to the destination. The
            destination is as it was.
    """
    database = locate(destination, another="name another as DEST")
    with ExitStack() as stack:
        found = [stack.enter_context(_reading(source, database, busy_timeout_s)) for source in sources]
        with _destination(database, busy_timeout_s) as connection:
            merged = Destination(connection)
            standings = reconcile.standings(connection, database.label)
            before = {standing.winner_id for standing in standings if standing.current}
            added: list[Added] = []
            for source in found:
                counts, taken = merged.take(source)
                added.append(Added(source.database.label, counts))
                standings += taken
            disputes = reconcile.decide_afresh(connection, standings, merged.new_winners)
            after = reconcile.standings(connection, database.label)
            now = {standing.winner_id for standing in after if standing.current}
    conflicts = (*merged.conflicts, *(Conflict("winner", dispute) for dispute in disputes))
    return Merged(database.label, tuple(added), len(now), len(before - now), conflicts)


@contextmanager
def _reading(location: str, destination: Database, timeout_s: float) -> Iterator[Source]:
    """A source at the head, as it is at this moment: all of it is read in one transaction."""
    database = locate(location, another="name another as SRC")
    with faults(database):
        if _is_same(database, destination):
            raise UsageError(f"{location} is the destination itself: name another database to merge into it")
    with opened(database, read_only=True, timeout_s=timeout_s) as engine:
        schema.prepare(engine, database, read_only=True)
        spool.replay(engine, database)
        with engine.connect() as connection, LeftOut(connection) as left_out:
            yield Source(database, connection, left_out)


@contextmanager
def _destination(database: Database, timeout_s: float) -> Iterator[Connection]:
    """The destination in one write transaction. Where that fails, a file that it made is removed."""
    _refuse_others(database, timeout_s)
    with faults(database), ExitStack() as held:
        engine = open_engine(database, read_only=False, timeout_s=timeout_s)
        if database.path is not None:
            held.enter_context(sole_writer(database.path, database.label))
        undo = held.enter_context(ExitStack())
        if database.path is not None and not database.path.exists():
            undo.callback(_remove, database.path)
        held.callback(engine.dispose)
        schema.prepare(engine, database, read_only=False)
        spool.replay(engine, database)
        with writing(engine).begin() as connection:
            yield connection
        undo.pop_all()
        if database.path is not None:
            settle_journal(engine, database.path)


def _refuse_others(database: Database, timeout_s: float) -> None:
    """Raise for a file that is no database of ours, before a lock file is made beside it."""
    with faults(database):
        if database.path is None or not database.path.exists():
            return
    with opened(database, read_only=True, timeout_s=timeout_s) as engine, engine.connect() as connection:
        schema.revision(connection, database)


def _is_same(one: Database, other: Database) -> bool:
    if one.path is None or other.path is None:
        return one.url == other.url and one.url is not None
    try:
        return one.path.samefile(other.path)
    except OSError:  # one of them is not there, or cannot be looked at: opening it says so
        return False


def _remove(path: Path) -> None:
    for ending in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
