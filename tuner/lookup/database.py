"""The current winners of one device, read from a SQLite database once, read-only, by the standard library.

Serving processes must neither lock, change nor litter a database. A write-ahead-log database makes that delicate:
opened with `mode=ro`, SQLite leaves a -wal and a -shm file behind where there were none, and cannot open it at all in
a folder that may not be written. `immutable=1` does neither, but does not see what is still in the -wal file. So:
immutable where there is no log to see, `mode=ro` where there is, immutable again where that is impossible.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, fields
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from tuner import files
from tuner.errors import TableError
from tuner.hardware.device import IDENTITY, Device, Environment
from tuner.kernel.config import Config
from tuner.lookup import fault
from tuner.lookup.families import batches_from, check_of
from tuner.lookup.fault import Fault
from tuner.lookup.row import BAD_VALUE, PROBLEM, Provenance, Row, positive, problem_of
from tuner.problem import Problem
from tuner.problem.family import Family, Range

T = TypeVar("T")
_log = logging.getLogger(__name__)

MAGIC = b"SQLite format 3\0"
REVISION = "0008"
"""The schema that the queries below speak: the head of migrations/. A test holds the two together."""
OLDEST_REVISION = "0001"
"""The oldest schema that the queries below can still read: a serving process does not wait for an upgrade."""
DAMAGED = "damaged: restore a backup, or save what is readable with `sqlite3 FILE .recover`"
"""What to do about a file that SQLite cannot make sense of."""
BUSY_SECONDS = 2.0
"""How long a first lookup waits for a writer that recovers its log; ordinary writing never blocks a reader."""

_WAL = 2  # bytes 18 and 19 of the header: file format versions. Source: https://sqlite.org/fileformat.html

WINNER_JOINS = {
    "device": "winner.device_id",
    "environment": "winner.environment_id",
    "problem": "winner.problem_id",
    "config": "winner.config_id",
    "kernel": "config.kernel_id",
    "run": "winner.run_id",
}
"""The tables that a winner's parts are in, each after those it needs, with the column that refers to it.

Queries here and in `tuner.store` are made of it, so that a serving process and the store see the same winners.
"""
_PROBLEM = ("op", *PROBLEM)
_ENVIRONMENT = tuple(field.name for field in fields(Environment))
_COLUMNS = (
    *(f"problem.{name}" for name in _PROBLEM),
    *(f"environment.{name}" for name in _ENVIRONMENT),
    *(f"winner.{name}" for name in ("winner_id", "median_us", "default_us", "vendor_us", "ties")),
    *(
        "kernel.name AS kernel",
        "kernel.version",
        "kernel.source_hash",
        "config.parameters",
        "run.protocol",
        "run.tool_version",
    ),
)
_WINNERS = f"""
SELECT {", ".join(_COLUMNS)}
FROM winner {" ".join(f"JOIN {table} ON {table}.{table}_id = {key}" for table, key in WINNER_JOINS.items())}
WHERE winner.superseded_by IS NULL AND device.slug = ?
ORDER BY winner.decided_at DESC, winner.winner_id DESC
"""  # noqa: S608  every name is a literal of this package
_FAMILIES = f"""
SELECT {", ".join(f"problem.{name}" for name in _PROBLEM)}, family.*, family_range.*
FROM family
JOIN device ON device.device_id = family.device_id
JOIN family_range ON family_range.family_id = family.family_id
JOIN problem ON problem.problem_id = family_range.problem_id
WHERE device.slug = ?
ORDER BY family.decided_at DESC, family.family_id DESC, family_range.first_m
"""  # noqa: S608  every name is a literal of this package
_DEVICES = f"SELECT {', '.join(IDENTITY)}, device.* FROM device ORDER BY slug"  # noqa: S608
_RATES = ("clock_mhz", "memory_gb_per_s")
"""Columns of a device that revision 0001 lacks; NULL where nobody asked the driver."""


@dataclass(frozen=True, slots=True)
class Winners:
    """A device's current winners and its families, the newest first, and what was wrong with the ones left out."""

    rows: tuple[Row, ...]
    families: tuple[Family, ...]
    faults: tuple[Fault, ...]


def is_database(path: Path) -> bool:
    """Whether a file is a SQLite database; OSError or TableError where it cannot be read."""
    files.check_regular(path, "database", error=TableError)
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_winners(path: Path, slug: str) -> Winners:
    """The current winners of a device.

    Raises:
        TableError: the file cannot be read, is no database, or its schema is behind or ahead.
    """
    return _read(path, lambda connection: _winners(connection, slug))


def read_devices(path: Path) -> list[Device]:
    """The devices a database knows, by slug."""
    devices, faults = describe_devices(path)
    for each in faults:
        _log.warning("%s: %s", path, each)
    return devices


def describe_devices(path: Path) -> tuple[list[Device], list[Fault]]:
    """The devices a database knows, by slug, and the faults of those that were left out."""
    return _read(path, _devices)


def _devices(connection: sqlite3.Connection) -> tuple[list[Device], list[Fault]]:
    """Read the devices; one with values of the wrong kind is left out, for SQLite keeps any value in any column."""
    found: list[Device] = []
    faults: list[Fault] = []
    for row in connection.execute(_DEVICES):
        known = dict(zip(row.keys(), row, strict=True))
        identity: list[Any] = [known.get(name) for name in IDENTITY]
        if [type(one) for one in identity] == 4 * [str] + 4 * [int]:
            rates = [known.get(name) for name in _RATES]
            found.append(Device(*identity, *(rate if isinstance(rate, int) else None for rate in rates)))
        else:
            wrong = ValueError(f"four strings and four integers expected, got {tuple(identity)}")
            faults.append(fault.unreadable(f"device {known['device_id']}", wrong))
    return found, faults


def _winners(connection: sqlite3.Connection, slug: str) -> Winners:
    rows: list[Row] = []
    faults: list[Fault] = []
    made: dict[Provenance, Provenance] = {}  # a few environments serve thousands of rows
    for found in connection.execute(_WINNERS, (slug,)):
        try:
            rows.append(_row(found, made))
        except BAD_VALUE as e:
            faults.append(fault.unreadable(f"winner {found['winner_id']}", e))
    return Winners(tuple(rows), tuple(_families(connection, slug, faults)), tuple(faults))


def _families(connection: sqlite3.Connection, slug: str, faults: list[Fault]) -> Iterator[Family]:
    """The families of a device, the one decided last first; an older schema has none."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'family'").fetchone() is None:
        return
    for number, ranges in groupby(connection.execute(_FAMILIES, (slug,)), key=itemgetter("family_id")):
        try:
            yield _family(list(ranges))
        except BAD_VALUE as e:
            faults.append(fault.unreadable_family(f"family {number}", e))


def _family(ranges: list[sqlite3.Row]) -> Family:
    figures = [ranges[0][name] for name in ("checked", "regret_geomean", "regret_worst")]
    problems = [_problem(each) for each in ranges]
    if len({problem.family for problem in problems}) > 1:
        raise ValueError("its ranges are of problems that differ in more than M")
    check = None if None in figures else check_of(*figures)
    named = dict(ranges[0])  # an older schema has no batches
    given = [named.get(name) for name in ("first_batch", "last_batch")]
    batches = None if given == [None, None] else batches_from(given)
    served = tuple(
        Range(each["first_m"], each["last_m"], problem.m, each["evidence"])
        for each, problem in zip(ranges, problems, strict=True)
    )
    return Family(problems[0].group(), served, check, batches)


def _problem(found: sqlite3.Row) -> Problem:
    problem = {name: found[name] for name in _PROBLEM}
    return problem_of(problem | {"aligned": bool(found["aligned"]), "extras": json.loads(found["extras"])})


def _row(found: sqlite3.Row, made: dict[Provenance, Provenance]) -> Row:
    environment = Environment(*(str(found[name]) for name in _ENVIRONMENT))
    provenance = Provenance(environment, int(found["protocol"]), str(found["tool_version"]))
    median_us = positive(found["median_us"], "median_us")
    default_us = positive(found["default_us"], "default_us", optional=True)
    vendor_us = positive(found["vendor_us"], "vendor_us", optional=True)
    assert median_us is not None
    return Row(
        problem=_problem(found),
        config=Config.from_json(found["kernel"], found["parameters"]),
        kernel_version=int(found["version"]),
        made=made.setdefault(provenance, provenance),
        median_us=median_us,
        vs_default=default_us / median_us if default_us else None,
        vs_vendor=vendor_us / median_us if vendor_us else None,
        ties=max(1, len(json.loads(found["ties"]))),
        source_hash=str(found["source_hash"]),
    )


def _read(path: Path, query: Callable[[sqlite3.Connection], T]) -> T:
    files.check_regular(path, "database", error=TableError)
    if path.is_dir():
        raise TableError(f"{path} is a folder: expected a database file, for instance {path / 'tuner.db'}")
    try:
        for _ in range(3):
            before = _state(path)
            try:
                answer = _query(path, _how(path), query)
            except (sqlite3.Error, UnicodeDecodeError, TableError):
                if before == _state(path):
                    raise
                continue  # a writer came in between: what was read may be half of it, and look damaged
            if before == _state(path):
                return answer
        return _query(path, "mode=ro", query)  # it is being written all the time: its log is there to stay
    except (OSError, sqlite3.OperationalError) as e:
        why = getattr(e, "strerror", None) or e
        raise TableError(
            f"cannot read the database {path}: {why}: look at its disk and permissions, or name another"
        ) from e
    except (sqlite3.Error, UnicodeDecodeError) as e:  # the last where SQLite's own message cites damaged bytes
        raise TableError(f"cannot read the database {path}: {DAMAGED} ({e})") from e


def _query(path: Path, how: str, query: Callable[[sqlite3.Connection], T]) -> T:
    try:
        with closing(_connect(path, how)) as connection:
            _check_revision(connection, path)
            return query(connection)
    except sqlite3.OperationalError:
        # The folder may not be written, so SQLite cannot make the -shm file that goes with the log. What was moved
        # into the database itself can still be read. Without a log this would only hide another fault.
        if how != "mode=ro" or not _is_wal(path) or os.access(_itself(path).parent, os.W_OK):
            raise
        _log.warning("%s: its folder may not be written: winners still in its -wal file are not seen", path)
        return _query(path, "immutable=1", query)


def _connect(path: Path, how: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{quote(os.fsencode(path.absolute()))}?{how}", uri=True, timeout=BUSY_SECONDS)
    connection.row_factory = sqlite3.Row
    # sqlite3 would raise: one damaged word would cost every row
    connection.text_factory = lambda stored: stored.decode(errors="replace")
    return connection


def _how(path: Path) -> str:
    return "immutable=1" if _is_wal(path) and not _log_bytes(path) else "mode=ro"


def _is_wal(path: Path) -> bool:
    with path.open("rb") as file:
        header = file.read(20)
    if header and not header.startswith(MAGIC):
        raise TableError(f"{path} is not a SQLite database")
    return header[18:20] == bytes((_WAL, _WAL))


def _log_bytes(path: Path) -> int:
    try:
        return Path(f"{_itself(path)}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def _itself(path: Path) -> Path:
    """The file that a link leads to: SQLite's other files are beside that one."""
    return Path(os.path.realpath(path))


def _state(path: Path) -> tuple[int, int, bool]:
    """What changes when an immutable reader may have read two versions of the file. A log that grows does no harm."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size, _log_bytes(path) > 0


def _check_revision(connection: sqlite3.Connection, path: Path) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"alembic_version", "winner"} <= tables:  # others use Alembic, too
        there = ", ".join(sorted(tables)[:5]) or "none"
        raise TableError(f"{path} is not a database of triton-tuner (it has the tables {there}): name another")
    (found,) = connection.execute("SELECT version_num FROM alembic_version").fetchone() or ("",)
    revision = found if isinstance(found, str) else repr(found)
    shown = (revision if revision.isalnum() else repr(revision)[:40]) if revision else "none"
    if revision < OLDEST_REVISION:
        upgrade = f"tuner db upgrade --db {shlex.quote(str(path))}"
        raise TableError(f"{path} has schema {shown}, older than {OLDEST_REVISION}: {upgrade}")
    if revision > REVISION:
        raise TableError(f"{path} has schema {shown}, newer than {REVISION}, which this reads: upgrade triton-tuner")
