"""Where tuned configs are found, in the order the sources are asked.

First what `tuner.use` named, then `$TUNER_TABLES`, the user's database, the tables of installed packages, and those
that come with triton-tuner.

`check` and `devices` of a source raise TableError where it cannot be read. `winners` never raises: what cannot be read
is one warning, and holds nothing. `devices` does not warn of what it leaves out, because `winners` does. `slugs` gives
the slugs of its devices without reading rows, and neither raises nor warns.
"""

from __future__ import annotations

import functools
import importlib.resources
import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tuner import files
from tuner.entry_points import entry_points
from tuner.errors import AbsentError, TableError
from tuner.hardware.device import Device
from tuner.location import database_location, expanded, sqlite_path, without_password
from tuner.lookup import loaded_table, table, table_files
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.loaded_table import LoadedTable

if TYPE_CHECKING:
    from importlib.abc import Traversable

GROUP = "tuner.tables"
OWN = "triton-tuner"
"""The entry point of the tables that come with triton-tuner."""
VARIABLE = "TUNER_TABLES"


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
        """The device that it is for."""
        return table_files.devices([self.path])

    def slugs(self) -> list[str]:
        """The slug of that device."""
        try:
            return [self._loaded.device.slug]
        except TableError:
            return []


class _Folder:
    """A folder of tables named `<op>--<device slug>.json`, of which only this device's are read."""

    name: str

    def _folder(self) -> Traversable:
        """Find it, or raise TableError."""
        raise NotImplementedError

    def check(self) -> None:
        """List it."""
        table_files.tables_in(self._folder())

    def winners(self, slug: str) -> DeviceWinners:
        """The rows of this device's tables."""
        try:
            return table_files.of_folder(self.name, slug, self._folder())
        except TableError as e:
            return table_files.unusable(self.name, e)

    def devices(self) -> list[Device]:
        """The devices of all its tables."""
        return table_files.devices(table_files.tables_in(self._folder()))

    def slugs(self) -> list[str]:
        """The slugs in the names of its tables."""
        try:
            return sorted({table_files.slug_in(path) for path in table_files.tables_in(self._folder())})
        except TableError:
            return []


class TableFolder(_Folder):
    """A folder that somebody named."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.path = path

    def check(self) -> None:
        """Parse all its tables, those of other devices too: whoever names a folder wants to know what is wrong."""
        for path in table_files.tables_in(self.path):
            table.parse(table.read_bytes(path), str(path))

    def _folder(self) -> Traversable:
        return self.path


class TablePackage(_Folder):
    """The folder of an installed package, named by an entry point of the group `tuner.tables`."""

    def __init__(self, point: EntryPoint, *, is_ours: bool = False) -> None:
        """Keep where it is.

        Args:
            point: the entry point.
            is_ours: whether it comes with triton-tuner: then all that others hold, their ranges too, comes before its
                rows.
        """
        self.name = f"package {point.value}"
        self.point = point
        self.is_ours = is_ours

    def tables(self) -> list[Traversable]:
        """The files of its tables.

        Raises:
            TableError: it cannot be found, cannot be listed or holds none.
        """
        return table_files.tables_in(self._folder())

    def folder(self) -> Traversable | None:
        """Where its tables lie; None where it cannot be found."""
        try:
            return self._folder()
        except TableError:
            return None

    def _folder(self) -> Traversable:
        return self._found

    @functools.cached_property
    def _found(self) -> Traversable:
        return _package_folder(self.point.value)


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
            if not _holds(path):
                return table_files.holding(self.name, (), "an empty file" if path.exists() else "not there")
            found = _reader().read_winners(path, slug)
        except OSError as e:
            error = TableError(f"cannot read the database {self.location}: {e.strerror}")
            return table_files.unusable(self.name, error)
        except TableError as e:
            return table_files.unusable(self.name, e)
        table_files.warn_of_faults(self.name, found.faults)
        note = table_files.counted(len(found.rows), slug)
        return table_files.holding(self.name, found.rows, "; ".join([note, *map(str, found.faults)]), found.families)

    def devices(self) -> list[Device]:
        """The devices it has seen."""
        path = self._path()
        return _reader().describe_devices(path)[0] if _holds(path) else []

    def slugs(self) -> list[str]:
        """The slugs of these devices."""
        try:
            path = self._path()
            return [device.slug for device in _reader().describe_devices(path)[0]] if _holds(path) else []
        except (OSError, TableError):
            return []

    def _path(self) -> Path:
        path = sqlite_path(self.location)
        if path is None:
            raise _on_server(self.location)
        files.check_regular(path, "database", error=TableError)
        return path


Source = TableFile | TableFolder | TablePackage | Database


def _holds(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def named(where: str | Path) -> Source:
    """The source of a table, a folder of tables, a SQLite database or an installed package that somebody named.

    Raises:
        AbsentError: it is not there.
        TableError: it cannot be read.
    """
    if not str(where):  # pathlib takes it for the current folder
        raise TableError("the name of a table is empty: expected a table, a folder of tables, a package or a database")
    path = sqlite_path(str(where))
    if path is None:
        raise _on_server(str(where))
    files.check_regular(path, "table, a folder of tables or a database", error=TableError)
    source = _at(str(where), path) if path.exists() else package(str(where))
    if source is None:
        raise absent(path)
    source.check()
    return source


def absent(where: str | Path) -> AbsentError:
    """The error for a place that somebody named and where nothing is."""
    return AbsentError(f"{where} is not there: expected a table, a folder of tables, a package or a database")


def default_sources() -> list[Source]:
    """The sources that nobody named in this process, in order: `$TUNER_TABLES`, the database, packages."""
    entries = [entry for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    location = database_location()
    return [
        *(_at(f"${VARIABLE} {entry}", expanded(entry)) for entry in entries),
        Database(f"database {_without_password(location)}", location),
        *packages(),
    ]


def packages() -> list[TablePackage]:
    """Installed packages that say that they ship tables, by the names of their entry points; triton-tuner is last."""
    points = sorted(entry_points(GROUP), key=lambda point: point.name == OWN)
    return [TablePackage(point, is_ours=point.name == OWN) for point in points]


def place_of(source: Source) -> Traversable | None:
    """Where a source's tables lie, and what ships beside them; None of a database, and where it cannot be found."""
    if isinstance(source, TableFile):
        return source.path.parent
    if isinstance(source, TableFolder):
        return source.path
    return source.folder() if isinstance(source, TablePackage) else None


def package(name: str) -> TablePackage | None:
    """The installed package that ships tables under this name, its own or its entry point's."""
    named = (each.point for each in packages() if name in (each.point.name, each.point.value))
    return next(map(TablePackage, named), None)


def _at(name: str, path: Path) -> Source:
    try:
        files.check_regular(path, "table", error=TableError)
        if path.is_dir():
            return TableFolder(name, path)
        return Database(name, str(path)) if _reader().is_database(path) else TableFile(name, path)
    except (OSError, TableError):
        return TableFile(name, path)  # reading it will say what is wrong


def _reader() -> ModuleType:
    """The module that reads databases. It is imported where there is one, for it brings SQLite along."""
    from tuner.lookup import database

    return database


def _on_server(location: str) -> TableError:
    return TableError(
        f"{_without_password(location)} is not read at run time, only SQLite files are: tuner export DIR --db URL,"
        f" then name DIR instead, or {VARIABLE}=DIR"
    )


def _without_password(location: str) -> str:
    scheme, mark, rest = without_password(location).partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}" if mark else location


def _package_folder(name: str) -> Traversable:
    """The folder of an installed package that an entry point names, found without running any of its code.

    Raises:
        TableError: there is no such package, or its files cannot be read.
    """
    try:
        spec = _spec_of(name)
        if spec is None:
            raise TableError(f"entry point of {GROUP} names {name!r}: there is no such package")
        if type(spec.loader) is SourceFileLoader and spec.submodule_search_locations is not None:
            return Path(spec.loader.path).parent  # importlib's own reader imports what reads archives
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
