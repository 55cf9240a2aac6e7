"""How a database is reached: its location, its connections, and what its faults mean in words."""

from __future__ import annotations

import logging
import os
import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, StatementError
from sqlalchemy.pool import QueuePool

from tuner import files
from tuner.errors import StoreError
from tuner.location import database_location, sqlite_path
from tuner.lookup.database import DAMAGED
from tuner.store.column_values import StrayValue
from tuner.store.filesystem import journal_mode

BUSY_TIMEOUT_S = 30.0
"""How long a statement waits for another process's lock."""

ANOTHER = "name another with --db or $TUNER_DB"
"""The advice where a database cannot be used; see `Database.another`."""

_log = logging.getLogger(__name__)
_WAL_HEADER = 2
"""Bytes 18 and 19 of a database's header: https://www.sqlite.org/fileformat.html#file_format_version_numbers."""
_MEANINGS = {
    "database is locked": "another process holds its lock: one writes at a time, try again when that one has ended",
    "file is not a database": f"not a SQLite database: {ANOTHER}",
    "malformed": DAMAGED,
    "Could not decode": DAMAGED,
    "database or disk is full": "the disk is full: nothing of this was written; there, or in $TMPDIR where SQLite "
    "sorts what it reads, make room, then type the command again",
    "disk I/O error": "the disk could not be read or written: nothing of this was written; if it is full make room, "
    "which reading takes too, else restore a backup",
    "readonly database": f"not writable: check its permissions and its folder's, or {ANOTHER}",
    "unable to open": f"could not be opened: check its permissions and its folder's, or {ANOTHER}",
}
"""What SQLite's messages mean here, by words of theirs; the first that fits counts."""
_NO_SERVER = f"no server answers there: start it, or {ANOTHER}"
_ENDED = "the server ended the connection: type the same command again, committed rows are kept"
_BUSY = "the server takes nobody in just now: type the same command again"
_GIVE_PASSWORD = "give postgresql://USER:PASSWORD@HOST/NAME, or set $PGPASSWORD"
_AWAY = {
    "lock timeout": "another process holds its lock: one writes at a time, try again when that one has ended",
    "Is the server running": _NO_SERVER,
    "connection timeout expired": _NO_SERVER,
    "No route to host": _NO_SERVER,
    "Network is unreachable": _NO_SERVER,
    "Temporary failure in name resolution": _NO_SERVER,
    "terminating connection": _ENDED,
    "connection unexpectedly": _ENDED,
    "Connection reset": _ENDED,
    "Connection timed out": _ENDED,
    "connection is lost": _ENDED,
    "connection is closed": _ENDED,
    "starting up": _BUSY,
    "shutting down": _BUSY,
    "recovery mode": _BUSY,
    "not yet accepting connections": _BUSY,
    "too many clients": _BUSY,
    "connection slots": _BUSY,
}
"""What PostgreSQL's messages mean that time cures; whoever may wait can try again."""
_SERVER_MEANINGS = {
    **_AWAY,
    "no schema has been selected": "no schema that search_path names is there: its owner can CREATE SCHEMA it",
    "pg_hba.conf": "the server does not let this user in from here: its owner can add a line to its pg_hba.conf",
    "permission denied": "this user may not do that: its owner can GRANT it",
    "password authentication failed": f"the server does not take this password of this user: {_GIVE_PASSWORD}",
    "password": f"the server lets nobody in without: {_GIVE_PASSWORD}",
    "failed to resolve host": "no host has that name: give postgresql://USER@HOST/NAME of one that is there",
    "role ": "the server does not know this user: give postgresql://USER@HOST/NAME",
    "database ": f"the server cannot open it: make it with createdb, or {ANOTHER}",
    "read-only transaction": "not writable: it is a copy that follows another server, name that one",
}
"""What all of PostgreSQL's mean; the first that fits counts, and many name a user and a database beside their point."""
_EXPECTED = "expected a path, or postgresql://user@host/name"

_SLIP = re.compile(r"postgres(ql)?(\+\w+)?(?!://)[:/]+|(host|hostaddr|port|dbname|user|password)=")
"""What a URL of a server begins with where its :// is mistyped, or where it is what libpq takes besides URLs."""

_NO_PORT = "the port after the host is no number from 1 to 65535: expected postgresql://user@host:5432/name"


@dataclass(frozen=True, slots=True)
class Database:
    """Where a database is.

    Attributes:
        label: the location in messages and in commands to type; a password is masked.
        path: the file of a SQLite database, None for a server's.
        url: where a server's database is, None for SQLite.
        another: how messages say to name another one.
    """

    label: str
    path: Path | None
    url: URL | None = None
    another: str = ANOTHER


def locate(location: str | Path | None, *, another: str = ANOTHER) -> Database:
    """Say where a database is; nothing is opened.

    Args:
        location: what `--db` or `Store.open` was given, a path or a URL; None means `$TUNER_DB`, else the user data
            folder.
        another: see `Database`.

    Raises:
        StoreError: it is a URL of another kind, or one that cannot be read. No message shows a password.
    """
    given = database_location(location)
    if (slip := _SLIP.match(given)) is not None:  # a file of that name would be made; the rest may hold a password
        raise StoreError(f"not a database: {slip[0]}...: {_EXPECTED}; a path that begins like that is ./{slip[0]}...")
    path = sqlite_path(given)
    if path is not None:
        if given.removeprefix("sqlite:///").startswith("~") and str(path).startswith("~"):
            raise StoreError(f"not a database file: {given!r}: no such home: expected a path, or ./~ for such a name")
        return Database(given, path, another=another)
    given = re.sub(r"^postgres://", "postgresql://", given)  # libpq takes both
    scheme = given.partition("://")[0]  # no more of it in a message: it may hold a password
    try:
        url = make_url(given)
    except ArgumentError:
        raise StoreError(f"not a database: {scheme}://...: {_EXPECTED}") from None
    except ValueError:
        raise StoreError(f"not a database: {scheme}://...: {_NO_PORT}") from None
    if url.get_backend_name() == "sqlite":
        raise StoreError(f"not a database file: {given!r}: expected a path, or sqlite:/// and a path")
    if url.get_backend_name() != "postgresql":
        raise StoreError(f"{scheme}://...: neither SQLite nor PostgreSQL: {_EXPECTED}")
    if url.host is not None and "@" in url.host:  # the rest of a password, which no message may show
        raise StoreError(f"{scheme}://...: the host has an @: write that of a password as %40")
    if url.port is not None and not 0 < url.port < 65536:
        raise StoreError(f"not a database: {scheme}://...: {_NO_PORT}")
    if not (url.database or {"dbname", "service"} & url.query.keys()):  # that would be the server's own
        raise StoreError(f"{scheme}://...: names no database: expected postgresql://user@host/name")
    secrets = {name: "***" for name in url.query if "password" in name}
    label = url.update_query_dict(secrets).render_as_string(hide_password=True)
    return Database(label, None, url.set(drivername="postgresql+psycopg"), another)  # the driver of our extra


def open_engine(database: Database, *, read_only: bool, timeout_s: float) -> Engine:
    """Connections to a database. A SQLite file, and its folder, are made when they are missing and may be written.

    A transaction reads the database as it stands at its begin; one of `writing` keeps other writers out.

    Args:
        database: where it is.
        read_only: nothing may be written; of a SQLite file not even the files beside it, where they cannot be.
        timeout_s: how long a statement waits for another process's lock, seconds.

    Raises:
        StoreError: a missing file with `read_only`, a folder or a pipe in its place, a driver that is not installed.
    """
    if database.path is None:
        return _server_engine(database, timeout_s)
    path = database.path
    if path.is_dir():
        raise StoreError(f"{database.label} is a folder: expected a database file, for instance {path / 'tuner.db'}")
    files.check_regular(path, "database", error=StoreError)
    if read_only and not path.exists():
        raise StoreError(f"no database at {database.label}: `tuner run` makes one, or {database.another}")
    if not read_only:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise StoreError(f"{database.label}: {path.parent} is not a folder: {database.another}") from None
    engine = create_engine(
        "sqlite://",
        creator=lambda: connect_file(path, read_only=read_only, timeout_s=timeout_s),
        poolclass=QueuePool,
        execution_options={"location": database.label},
    )
    event.listen(engine, "begin", _begin)
    return engine


@contextmanager
def opened(database: Database, *, read_only: bool, timeout_s: float = BUSY_TIMEOUT_S) -> Iterator[Engine]:
    """Connections to a database for as long as the block runs; see `open_engine` and `faults`."""
    with faults(database):
        engine = open_engine(database, read_only=read_only, timeout_s=timeout_s)
        try:
            yield engine
        finally:
            engine.dispose()


def connect_file(path: Path, *, read_only: bool, timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Connection:
    """A connection to a SQLite file, foreign keys on, that begins no transaction by itself.

    A text that is no UTF-8 is read as one that no column takes. See `open_engine` for the arguments.

    Raises:
        sqlite3.Error: the file cannot be opened.
    """
    mode = _reading_mode(path) if read_only else "rwc"
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=timeout_s,
        # sqlite3's own transaction control leaves DDL outside of transactions: `_begin` begins them.
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = _text
    connection.execute("PRAGMA foreign_keys = ON")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    return connection


def writing(engine: Engine) -> Engine:
    """The same connections, but each transaction takes the write lock when it begins.

    A transaction of SQLite that read first and then wants to write cannot wait for the lock: it would fail at once.
    """
    return engine.execution_options(begin="IMMEDIATE")


def settle_journal(engine: Engine, path: Path) -> None:
    """Give a file the journal mode that suits where it lies (`journal_mode`), unless it has it.

    Where it is locked or read-only it keeps its own, and the next process that opens it tries again.
    """
    wanted = journal_mode(path)
    with closing(engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
        if cursor.execute("PRAGMA journal_mode").fetchone()[0] == wanted:
            return
        try:
            cursor.execute(f"PRAGMA journal_mode = {wanted}")
        except sqlite3.OperationalError as e:
            _log.debug("%s keeps its journal for now: %s", path, e)


def file_id(path: Path) -> tuple[int, int] | None:
    """The device and the inode of a file, which tell it from one that takes its name; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class UnavailableError(StoreError):
    """A server that does not answer, ended the connection or is locked: what was asked may be done or not."""


@contextmanager
def faults(database: Database) -> Iterator[None]:
    """Turn what drivers and the file system raise into one line that names the database.

    Raises:
        StoreError: for any of them.
    """
    try:
        yield
    except StatementError as e:
        kind = UnavailableError if not database.path and _is_away(e) else StoreError
        raise kind(_said(database, e.orig)) from e
    except sqlite3.Error as e:
        raise StoreError(_said(database, e)) from e
    except StrayValue as e:
        advice = f"`tuner db check --db {shlex.quote(database.label)}` says more"
        raise StoreError(f"{database.label}: damaged: {e}: {advice}") from e
    except UnicodeDecodeError as e:  # SQLite's own message cites damaged bytes
        raise StoreError(_said(database, sqlite3.DatabaseError(f"malformed schema: {e}"))) from e
    except OSError as e:
        raise StoreError(f"{database.label}: {e.strerror or e}: {database.another}") from e


def lacking(database: Database, noun: str | None = None) -> str:
    """What is said of a database without a row of a kind, or without any, and what to type."""
    found = "is empty" if noun is None else f"holds no {noun}"
    return f"{database.label} {found}: `tuner run --db {shlex.quote(database.label)}` fills it"


def _is_away(error: StatementError) -> bool:
    broken = isinstance(error, DBAPIError) and error.connection_invalidated
    return broken or any(words in str(error.orig) for words in _AWAY)


def _said(database: Database, error: BaseException | None) -> str:
    """What a driver's error means for a database, and what to do."""
    said = " ".join(str(error).split())
    for words, meaning in (_MEANINGS if database.path else _SERVER_MEANINGS).items():
        if words in said:
            return f"{database.label}: {meaning.replace(ANOTHER, database.another)} ({said})"
    return f"{database.label}: {said}"


class _Undecodable(str):
    """A text of a damaged file: `Stored` takes it for no word, so that it costs its row and not all that are read."""

    __slots__ = ()


def _text(stored: bytes) -> str:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return _Undecodable(stored.decode(errors="backslashreplace"))


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('begin', 'DEFERRED')}")


def _reading_mode(path: Path) -> str:
    """How SQLite opens a file that will only be read.

    A reader of a write-ahead log makes two files beside the database, and only one that may write removes them. Where
    they cannot be made and no log is waiting, the database is whole by itself, and SQLite must be told so.
    """
    path = Path(os.path.realpath(path))  # SQLite's other files are beside the file itself, not beside a link to it
    folder_writable = os.access(path.parent, os.W_OK)
    if folder_writable and os.access(path, os.W_OK):
        return "rw"
    log = path.with_name(f"{path.name}-wal")
    if folder_writable or not os.access(path, os.R_OK) or (log.exists() and log.stat().st_size):
        return "ro"
    with path.open("rb") as file:
        header = file.read(20)
    return "ro&immutable=1" if len(header) == 20 and header[18] == _WAL_HEADER else "ro"


def _server_engine(database: Database, timeout_s: float) -> Engine:
    try:
        from tuner.store import server

        return server.connections(database, timeout_s)
    except ImportError as e:
        raise StoreError(
            f"{database.label}: no driver for it ({e}): pip install 'triton-tuner[postgres]', or name a SQLite file"
        ) from e
