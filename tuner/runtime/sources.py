"""Where tuned configs are found, in the order they are asked: named tables, `$TUNER_TABLES`, the user's database,
tables that installed packages ship.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tuner.device import Device
from tuner.errors import TableError
from tuner.location import database_location, sqlite_path
from tuner.problem import Problem
from tuner.runtime import database, table
from tuner.runtime.table import Row, Table

if TYPE_CHECKING:
    from importlib.abc import Traversable

GROUP = "tuner.tables"
VARIABLE = "TUNER_TABLES"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shelf:
    """What one source holds for one device.

    Attributes:
        source: the source's name.
        rows: candidates by problem, the best first.
        groups: rows by `Problem.group()`: neighbours in M.
        note: what `tuner.explain` says of it: how much it holds, or why nothing.
    """

    source: str
    rows: Mapping[Problem, Sequence[Row]]
    groups: Mapping[Problem, Sequence[Row]]
    note: str


class Source(Protocol):
    """A place that may hold tuned configs."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def check(self) -> None:
        """Raise TableError where it cannot be read."""
        ...

    def shelf(self, slug: str) -> Shelf:
        """What it holds for a device. Never raises: what cannot be read is one warning and an empty shelf."""
        ...

    def devices(self) -> list[Device]:
        """The devices it holds something for."""
        ...


@dataclass(frozen=True, slots=True)
class TableFile:
    """One table file, whatever it is called."""

    name: str
    path: Path

    def check(self) -> None:
        """Read it."""
        table.load(self.path)

    def shelf(self, slug: str) -> Shelf:
        """Its rows, where it is for this device."""
        return _shelf_of_tables(self.name, slug, [self.path])

    def devices(self) -> list[Device]:
        """The one it is for."""
        return [found.device for found in _load_all(self.name, [self.path])[0]]


@dataclass(frozen=True, slots=True)
class TableFolder:
    """A folder of tables named `<op>--<device slug>.json`: only this device's are read."""

    name: str
    path: Path

    def check(self) -> None:
        """List it."""
        _list(self.path)

    def shelf(self, slug: str) -> Shelf:
        """The rows of this device's tables."""
        return _shelf_of_folder(self.name, slug, self.path)

    def devices(self) -> list[Device]:
        """Those of all its tables."""
        return [found.device for found in _load_all(self.name, _tables_in(self.path))[0]]


@dataclass(frozen=True, slots=True)
class TablePackage:
    """Tables inside an installed package, told by an entry point of the group `tuner.tables`."""

    point: EntryPoint

    @property
    def name(self) -> str:
        """The package and its entry point's name."""
        return f"package {self.point.value}"

    def check(self) -> None:
        """Find it."""
        _package_folder(self.point.value)

    def shelf(self, slug: str) -> Shelf:
        """The rows of this device's tables."""
        try:
            return _shelf_of_folder(self.name, slug, _package_folder(self.point.value))
        except TableError as e:
            return _unusable(self.name, e)

    def folder(self) -> Traversable | None:
        """Where its tables lie; None where it cannot be found."""
        try:
            return _package_folder(self.point.value)
        except TableError:
            return None

    def devices(self) -> list[Device]:
        """Those of all its tables."""
        paths = _tables_in(_package_folder(self.point.value))
        return [found.device for found in _load_all(self.name, paths)[0]]


@dataclass(frozen=True, slots=True)
class Database:
    """A database of `tuner run`. One that is not there holds nothing, and is not made."""

    name: str
    location: str

    def check(self) -> None:
        """Read it."""
        database.read_devices(self._path())

    def shelf(self, slug: str) -> Shelf:
        """The current winners of this device."""
        try:
            path = self._path()
            if not path.exists():
                return _shelf(self.name, (), "not there")
            if path.stat().st_size == 0:
                return _shelf(self.name, (), "an empty file")
            winners = database.read_winners(path, slug)
        except OSError as e:
            return _unusable(self.name, TableError(f"cannot read the database {self.location}: {e.strerror}"))
        except TableError as e:
            return _unusable(self.name, e)
        _warn_of_faults(self.name, winners.faults)
        return _shelf(self.name, winners.rows, "; ".join([_count(len(winners.rows), slug), *winners.faults]))

    def devices(self) -> list[Device]:
        """Those it has seen."""
        path = self._path()
        return database.read_devices(path) if path.exists() and path.stat().st_size else []

    def _path(self) -> Path:
        path = sqlite_path(self.location)
        if path is None:
            raise TableError(
                f"{_without_password(self.location)} is not read at run time, only SQLite files are: "
                f"tuner export DIR --db URL, then {VARIABLE}=DIR"
            )
        return path.expanduser()


def named(where: str | Path) -> Source:
    """The source of a table, a folder of tables or a SQLite database that somebody named.

    Raises:
        TableError: it is not there or cannot be read.
    """
    path = sqlite_path(str(where))
    if path is None:
        raise TableError(f"{_without_password(str(where))} is not read at run time: export a table from it first")
    path = path.expanduser()
    if not path.exists():
        raise TableError(f"{path} is not there: expected a table, a folder of tables or a database")
    source = _at(str(where), path)
    source.check()
    return source


def standing() -> list[Source]:
    """The sources nobody had to name in this process, in order: `$TUNER_TABLES`, the database, installed packages."""
    entries = [entry for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    location = database_location()
    return [
        *(_at(f"${VARIABLE} {entry}", Path(entry).expanduser()) for entry in entries),
        Database(f"database {_without_password(location)}", location),
        *packages(),
    ]


def packages() -> list[TablePackage]:
    """Installed packages that say that they ship tables, by the names of their entry points."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
    return [TablePackage(point) for point in points]


def _at(name: str, path: Path) -> Source:
    if path.is_dir():
        return TableFolder(name, path)
    try:
        return Database(name, str(path)) if database.is_database(path) else TableFile(name, path)
    except OSError:
        return TableFile(name, path)  # reading it will say what is wrong


def _shelf_of_folder(name: str, slug: str, folder: Traversable) -> Shelf:
    try:
        paths = _tables_in(folder)
    except TableError as e:
        return _unusable(name, e)
    mine = [path for path in paths if path.name.endswith(f"--{slug}.json")]
    others = sorted({path.name[:-5].rpartition("--")[2] for path in paths} - {slug})
    if mine or not others:
        return _shelf_of_tables(name, slug, mine)
    return _shelf(name, (), f"nothing for {slug}; it has tables for {', '.join(others)}")


def _shelf_of_tables(name: str, slug: str, paths: Iterable[Traversable]) -> Shelf:
    tables, trouble = _load_all(name, paths)
    mine = [row for found in tables if found.device.slug == slug for row in found.rows]
    others = sorted({found.device.slug for found in tables} - {slug})
    note = f"nothing for {slug}: it is for {', '.join(others)}" if others and not mine else _count(len(mine), slug)
    return _shelf(name, mine, "; ".join([note, *trouble]))


def _load_all(name: str, paths: Iterable[Traversable]) -> tuple[list[Table], list[str]]:
    """The tables that can be read, and what is wrong with the others: one warning each."""
    tables: list[Table] = []
    trouble: list[str] = []
    for path in paths:
        try:
            tables.append(table.load(path))
        except TableError as e:
            _log.warning("%s is not used: %s", name, e)
            trouble.append(f"not used: {e}")
        else:
            _warn_of_faults(str(path), tables[-1].faults)
            trouble.extend(tables[-1].faults)
    return tables, trouble


def _warn_of_faults(name: str, faults: tuple[str, ...]) -> None:
    """One warning a file: a table that somebody mangled must not fill the log."""
    if faults:
        more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
        _log.warning("%s: %s%s", name, "; ".join(faults[:3]), more)


def _shelf(name: str, rows: Iterable[Row], note: str) -> Shelf:
    exact: dict[Problem, list[Row]] = {}
    groups: dict[Problem, list[Row]] = {}
    for row in rows:
        exact.setdefault(row.problem, []).append(row)
        groups.setdefault(row.problem.group(), []).append(row)
    return Shelf(name, exact, groups, note)


def _unusable(name: str, error: TableError) -> Shelf:
    _log.warning("%s is not used: %s", name, error)
    return _shelf(name, (), f"not used: {error}")


def _count(rows: int, slug: str) -> str:
    return f"{rows} tuned {'problem' if rows == 1 else 'problems'} for {slug}" if rows else f"nothing for {slug}"


def _list(folder: Traversable) -> list[Traversable]:
    try:
        return sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as e:
        raise TableError(f"cannot list {folder}: {e.strerror}") from e


def _tables_in(folder: Traversable) -> list[Traversable]:
    return [path for path in _list(folder) if path.name.endswith(".json") and "--" in path.name]


def _package_folder(name: str) -> Traversable:
    """A package's files, found without running any of its code: a lookup must not import whoever ships a table."""
    try:
        spec = _spec_of(name)
        if spec is None:
            raise TableError(f"entry point of {GROUP} names {name!r}: there is no such package")
        return importlib.resources.files(importlib.util.module_from_spec(spec))
    except (AttributeError, ImportError, OSError, TypeError, ValueError) as e:  # loaders differ in what they can do
        raise TableError(f"entry point of {GROUP} names {name!r}, whose files cannot be read: {e}") from e


def _spec_of(name: str) -> ModuleSpec | None:
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        try:
            spec = _find_spec(".".join(parts[:depth]), spec)
        except KeyError:  # a namespace inside a package asks for that package in sys.modules: it must be imported
            return importlib.util.find_spec(name)
        if spec is None:
            return None
    return spec


def _find_spec(name: str, parent: ModuleSpec | None) -> ModuleSpec | None:
    path = None if parent is None else parent.submodule_search_locations
    found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in found if spec is not None), None)


def _without_password(location: str) -> str:
    scheme, mark, rest = location.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else location
