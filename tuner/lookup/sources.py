"""Where tuned configs are found, in the order they are asked: named tables, `$TUNER_TABLES`, the user's database,
tables that installed packages ship.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from tuner.entry_points import entry_points
from tuner.errors import TableError
from tuner.hardware.device import Device
from tuner.location import database_location, sqlite_path
from tuner.lookup import loaded_table, package, table_files
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.loaded_table import LoadedTable

if TYPE_CHECKING:
    from importlib.abc import Traversable

GROUP = "tuner.tables"
VARIABLE = "TUNER_TABLES"


class Source(Protocol):
    """A place that may hold tuned configs."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    def check(self) -> None:
        """Raise TableError where it cannot be read."""
        ...

    def winners(self, slug: str) -> DeviceWinners:
        """What it holds for a device. Never raises: what cannot be read is one warning and an empty held."""
        ...

    def devices(self) -> list[Device]:
        """The devices it holds something for."""
        ...

    def slugs(self) -> list[str]:
        """Their slugs, told without reading rows. Never raises, and never warns: `held` does."""
        ...


class TableFile:
    """One table file, whatever it is called. It is read once."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    @functools.cached_property
    def _loaded(self) -> LoadedTable:
        return loaded_table.load(self.path)

    def check(self) -> None:
        """Read it."""
        self._loaded  # noqa: B018

    def winners(self, slug: str) -> DeviceWinners:
        """Its rows, where it is for this device."""
        return table_files.of_tables(self.name, slug, [self.path], lambda _: self._loaded)

    def devices(self) -> list[Device]:
        """The one it is for."""
        return table_files.devices(self.name, [self.path])

    def slugs(self) -> list[str]:
        """Of that one."""
        try:
            return [self._loaded.device.slug]
        except TableError:
            return []


@dataclass(frozen=True, slots=True)
class TableFolder:
    """A folder of tables named `<op>--<device slug>.json`: only this device's are read."""

    name: str
    path: Path

    def check(self) -> None:
        """List it."""
        table_files.tables_in(self.path)

    def winners(self, slug: str) -> DeviceWinners:
        """The rows of this device's tables."""
        return table_files.of_folder(self.name, slug, self.path)

    def devices(self) -> list[Device]:
        """Those of all its tables."""
        return table_files.devices(self.name, table_files.tables_in(self.path))

    def slugs(self) -> list[str]:
        """By the names of its tables."""
        return table_files.slugs_in(self.path)


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
        package.folder(self.point.value, GROUP)

    def winners(self, slug: str) -> DeviceWinners:
        """The rows of this device's tables."""
        try:
            return table_files.of_folder(self.name, slug, package.folder(self.point.value, GROUP))
        except TableError as e:
            return table_files.unusable(self.name, e)

    def folder(self) -> Traversable | None:
        """Where its tables lie; None where it cannot be found."""
        try:
            return package.folder(self.point.value, GROUP)
        except TableError:
            return None

    def devices(self) -> list[Device]:
        """Those of all its tables."""
        return table_files.devices(self.name, table_files.tables_in(package.folder(self.point.value, GROUP)))

    def slugs(self) -> list[str]:
        """By the names of its tables."""
        folder = self.folder()
        return [] if folder is None else table_files.slugs_in(folder)


@dataclass(frozen=True, slots=True)
class Database:
    """A database of `tuner run`. One that is not there holds nothing, and is not made."""

    name: str
    location: str

    def check(self) -> None:
        """Read it."""
        _reader().read_devices(self._path())

    def winners(self, slug: str) -> DeviceWinners:
        """The current winners of this device."""
        try:
            path = self._path()
            if not path.exists():
                return table_files.holding(self.name, (), "not there")
            if path.stat().st_size == 0:
                return table_files.holding(self.name, (), "an empty file")
            winners = _reader().read_winners(path, slug)
        except OSError as e:
            return table_files.unusable(
                self.name, TableError(f"cannot read the database {self.location}: {e.strerror}")
            )
        except TableError as e:
            return table_files.unusable(self.name, e)
        table_files.warn_of_faults(self.name, winners.faults)
        note = table_files.counted(len(winners.rows), slug)
        return table_files.holding(self.name, winners.rows, "; ".join([note, *map(str, winners.faults)]))

    def devices(self) -> list[Device]:
        """Those it has seen."""
        path = self._path()
        return _reader().read_devices(path) if path.exists() and path.stat().st_size else []

    def slugs(self) -> list[str]:
        """Of those."""
        try:
            path = self._path()
            known = _reader().describe_devices(path)[0] if path.exists() and path.stat().st_size else []
        except (OSError, TableError):
            return []
        return [device.slug for device in known]

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


def default_sources() -> list[Source]:
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
    return [TablePackage(point) for point in entry_points(GROUP)]


def _at(name: str, path: Path) -> Source:
    if path.is_dir():
        return TableFolder(name, path)
    try:
        return Database(name, str(path)) if _reader().is_database(path) else TableFile(name, path)
    except OSError:
        return TableFile(name, path)  # reading it will say what is wrong


def _reader() -> ModuleType:
    """Of databases; imported where there is one, for SQLite comes with it."""
    from tuner.lookup import database

    return database


def _without_password(location: str) -> str:
    scheme, mark, rest = location.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else location
