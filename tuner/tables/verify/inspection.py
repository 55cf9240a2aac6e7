"""Tables, folders, packages and databases, read row by row and inspected: what `tuner verify` looks at."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import StoreError, TableError
from tuner.hardware.device import Device
from tuner.location import sqlite_path
from tuner.lookup import database, sources, table, table_files
from tuner.lookup.database import Winners
from tuner.lookup.fault import Fault
from tuner.lookup.row import Row
from tuner.lookup.table import Table
from tuner.tables.verify import kernels, lint
from tuner.tables.verify.finding import LEVELS, Finding, Level
from tuner.tables.verify.lint import Subject

if TYPE_CHECKING:
    from importlib.abc import Traversable

_NAMED = "files named <op>--<device slug>.json"


@dataclass(frozen=True, slots=True)
class Inspection:
    """What one place holds and what was found there.

    Attributes:
        place: as it was named.
        kind: "table", "folder", "package" or "database".
        tables, rows: how many could be read.
        findings: the worst first.
        kernels: how many folders of binaries it has.
    """

    place: str
    kind: str
    tables: int
    rows: int
    findings: tuple[Finding, ...]
    kernels: int = 0


def inspect(where: str) -> Inspection:
    """Read a place through and say what is wrong with it. No GPU is needed and nothing is written.

    It is a table, a folder of tables (`<op>--<device slug>.json`), an installed package that ships tables (the name of
    the package or of its entry point), a SQLite database, or the URL of a database.

    Raises:
        AbsentError: there is no such place.
    """
    path = sqlite_path(where)
    if path is None:
        return _of_database(where, None)
    try:
        if path.is_dir():
            return _of_folder(where, path, "folder")
        if path.exists():
            return _of_database(where, path) if database.is_database(path) else _of_tables(where, "table", [path])
    except OSError as e:
        return _result(where, "table", [], [_unreadable(where, f"cannot be read: {e.strerror or e}")])
    return _of_package(where)


def _of_package(where: str) -> Inspection:
    installed = sources.package(where)
    package = installed or sources.TablePackage(EntryPoint(where, where, sources.GROUP))
    named = all(part.isidentifier() for part in package.point.value.split("."))
    folder = package.folder() if named else None
    if folder is None:
        raise sources.absent(where)
    found = _of_folder(where, folder, "package")
    if installed:
        return found
    advice = f'add to pyproject.toml: [project.entry-points."{sources.GROUP}"]'
    expected = f"an entry point of the group {sources.GROUP}"
    hidden = Finding(Level.ERROR, "name", where, "", "", "no lookup finds this package", expected, advice)
    return replace(found, findings=(hidden, *found.findings))


def _of_folder(where: str, folder: Traversable, kind: str) -> Inspection:
    try:
        listed = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as e:
        return _result(where, kind, [], [_unreadable(where, f"cannot be listed: {e.strerror or e}")])
    paths = [path for path in listed if path.name.endswith(".json") and ("--" in path.name or _is_table(path))]
    binaries = [path for path in listed if path.name.endswith(table_files.KERNELS_SUFFIX)]
    databases = [path for path in listed if path.name.endswith(".db")]
    if databases and not paths and not binaries:
        type_next = f"tuner verify {shlex.quote(str(databases[0]))}"
        found = f"no table, but the database {databases[0].name}"
        return _result(where, kind, [], [_unreadable(where, found, _NAMED, type_next)])
    return _of_tables(where, kind, paths, binaries)


def _is_table(path: Traversable) -> bool:
    """Whether a file whose name no lookup asks for holds a table all the same."""
    try:
        table.load(path)
    except TableError:
        return False
    return True


def _of_tables(where: str, kind: str, paths: Iterable[Traversable], binaries: Sequence[Traversable] = ()) -> Inspection:
    subjects: list[Subject] = []
    findings: list[Finding] = []
    for path in paths:
        try:
            found = table.load(path)
        except TableError as e:
            findings.append(_unreadable(str(path), str(e)))
            continue
        subjects.append(Subject(str(path), found))
        findings += [_finding(str(path), found.device.slug, fault) for fault in found.faults]
        findings += _misnamed(subjects[-1], path, kind)
    tables = [subject.table for subject in subjects]
    findings += [finding for folder in binaries for finding in kernels.check(folder, tables)]
    if not subjects and not findings and not binaries:
        findings.append(_unreadable(where, "no table in it", _NAMED))
    inspection = _result(where, kind, subjects, [*findings, *_twice(subjects)])
    return replace(inspection, kernels=len(binaries))


def _misnamed(subject: Subject, path: Traversable, kind: str) -> list[Finding]:
    name = path.name
    if name == subject.table.file_name:
        return []
    is_found = table_files.has_tables_name(name) and table_files.slug_in(path) == subject.table.device.slug
    # A single file may be called anything: `tuner.use` and $TUNER_TABLES name it.
    level = Level.NOTE if kind == "table" else Level.WARNING if is_found else Level.ERROR
    said = "lookups read it all the same" if is_found else "no lookup finds it"
    found = f"the file is called {name}: in a folder or package {said}"
    advice = "rename it, or delete it where it is a copy" if is_found else "rename it"
    return [subject.finding(level, "name", found, subject.table.file_name, advice=advice)]


def _twice(subjects: Iterable[Subject]) -> list[Finding]:
    """Find problems of one device that are in several files: a lookup takes the first file's row."""
    first: dict[tuple[str, object], str] = {}
    findings: list[Finding] = []
    for subject in subjects:
        for row in subject.table.rows:
            place = first.setdefault((subject.table.device.slug, row.problem), subject.place)
            if place != subject.place:
                found = f"the problem is in {place} already"
                advice = "delete one of the two"
                findings.append(
                    subject.finding(Level.WARNING, "duplicate", found, "one row a problem", row=row, advice=advice)
                )
    return findings


def _of_database(where: str, path: Path | None) -> Inspection:
    from sqlalchemy.exc import SQLAlchemyError

    from tuner.store import health
    from tuner.store.engine import locate

    label = where.partition("://")[0]  # no more of it: it may hold a password
    try:
        label = locate(where).label
        found = health.check(where, another="name another")
    except (StoreError, SQLAlchemyError, UnicodeDecodeError) as e:  # the last two where the schema itself is damaged
        return _result(label, "database", [], [_unreadable(label, str(e), "a database that tuner run wrote")])
    advice = f"tuner db check --db {shlex.quote(where)}" if path is not None else "tuner db check --db URL"
    findings = [
        Finding(Level.ERROR, "database", found.location, "", "", complaint, "a sound database", advice)
        for complaint in found.complaints
    ]
    if found.revision != found.head:
        return _result(found.location, "database", [], findings)
    subjects: list[Subject] = []
    try:
        read, device_faults = _winners_of_file(path) if path is not None else (_winners_of_server(where), [])
    except (StoreError, TableError) as e:
        return _result(found.location, "database", [], [*findings, _unreadable(found.location, str(e))])
    findings += [_finding(found.location, "", fault) for fault in device_faults]
    for device, winners in read:
        findings += [_finding(found.location, device.slug, fault) for fault in winners.faults]
        subjects += [Subject(found.location, each, ships=False) for each in _by_op(device, winners)]
    if not subjects:
        expected, advice = "one at least", f"tuner run --db {shlex.quote(found.location)}"
        findings.append(Finding(Level.WARNING, "empty", found.location, "", "", "no winner", expected, advice))
    return _result(found.location, "database", subjects, findings)


def _winners_of_file(path: Path) -> tuple[list[tuple[Device, Winners]], list[Fault]]:
    """The winners as a serving process reads them, which leaves out what it cannot read, and the faults of devices."""
    devices, faults = database.describe_devices(path)
    return [(device, database.read_winners(path, device.slug)) for device in devices], faults


def _winners_of_server(where: str) -> list[tuple[Device, Winners]]:
    from tuner.store.store import Store
    from tuner.tables.export import row_of

    by_device: dict[Device, list[Row]] = {}
    with Store.open(where, read_only=True, another="name another") as store:
        for winner in store.winners():
            by_device.setdefault(winner.device, []).append(row_of(winner))
        decided = store.families()
    return [
        (device, Winners(tuple(rows), tuple(each.family for each in decided if each.device == device), ()))
        for device, rows in by_device.items()
    ]


def _by_op(device: Device, winners: Winners) -> list[Table]:
    ops: dict[str, list[Row]] = {}
    for row in winners.rows:
        ops.setdefault(row.problem.op, []).append(row)
    return [
        Table(op, device, "", tuple(rows), tuple(each for each in winners.families if each.problem.op == op))
        for op, rows in sorted(ops.items())
    ]


def _finding(place: str, slug: str, fault: Fault) -> Finding:
    """A fault of reading as a finding."""
    return Finding(Level.ERROR, fault.check, place, slug, fault.where, fault.found, fault.expected, fault.advice)


def _unreadable(
    place: str,
    found: str,
    expected: str = "a table that tuner export wrote",
    type_next: str = "name another, or write it again",
) -> Finding:
    return Finding(Level.ERROR, "unreadable", place, "", "", found, expected, type_next)


def _result(where: str, kind: str, subjects: list[Subject], findings: list[Finding]) -> Inspection:
    found = [*findings, *(finding for subject in subjects for finding in lint.check(subject))]
    rows = sum(len(subject.table.rows) for subject in subjects)
    found.sort(key=lambda finding: LEVELS.index(finding.level))
    return Inspection(where, kind, len(subjects), rows, tuple(found))
