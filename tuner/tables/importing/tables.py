"""Tables of triton-tuner from elsewhere, brought into a folder that serves: files, folders, archives and packages."""

from __future__ import annotations

import errno
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tuner import files
from tuner.errors import TableError, first_line
from tuner.lookup import device_names, families, sources, table, table_files
from tuner.lookup.sources import TablePackage
from tuner.lookup.table import FORMAT, Table
from tuner.problem.batches import Key, split
from tuner.tables.export import newest_versions

_IS_TABLE = FORMAT.encode()
_ARCHIVES = (".zip", ".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz")
_DAMAGED = (OSError, EOFError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)
"""What reading a damaged archive raises."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What became of the tables of one op and device.

    Attributes:
        path: the file that was written.
        rows, families: how many it has.
        new: how many rows were not there before, or were others.
        left_out: what could not be read, and how many rows gave way to a newer version of their kernel.
    """

    path: Path
    rows: int
    families: int
    new: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which part of tables is brought; without arguments all of them.

    Attributes:
        device: the slug, the name or a word of it of the device whose tables are; None for every device.
        families: what the problems of rows have in common with one of these, whatever their M and batch; None for all.
    """

    device: str | None = None
    families: frozenset[Key] | None = None

    def is_of(self, slug: str) -> bool:
        """Whether tables of a device are wanted."""
        return device_names.is_named(slug, self.device)

    def part(self, table: Table) -> Table:
        """The wanted part of a table, which may have no row."""
        if not self.is_of(table.device.slug):
            return replace(table, rows=(), families=())
        if self.families is None:
            return table
        rows = tuple(row for row in table.rows if split(row.problem)[0] in self.families)
        tuned = tuple(each for each in table.families if split(each.problem)[0] in self.families)
        return replace(table, rows=rows, families=tuned)


def holds_tables(path: Path) -> bool:
    """Whether a path is a folder, an archive, a package or a table of triton-tuner, and no file of others.

    Raises:
        TableError: it is no regular file, or cannot be read.
    """
    files.check_regular(path, "table", error=TableError)
    if path.is_dir():
        return True
    if not path.is_file():
        return _package(path) is not None
    try:
        path.open("rb").close()
    except OSError as e:
        raise TableError(f"cannot read {path}: {e.strerror}") from e
    return _is_archive(path) or _is_meant(path.name, files.read_bytes(path, "table", error=TableError))


def families_held(package: TablePackage) -> dict[str, set[Key]]:
    """By the slugs of devices, the families of which a package's tables have a row, as `Wanted` names them.

    Raises:
        TableError: a table cannot be read.
    """
    held: dict[str, set[Key]] = {}
    for path in package.tables():
        found = table.load(path)
        held.setdefault(found.device.slug, set()).update(split(row.problem)[0] for row in found.rows)
    return held


def bring(paths: Iterable[Path], folder: Path, wanted: Wanted = Wanted()) -> list[Brought]:
    """Unite tables with those of a folder, by op and device; of two rows for one problem the newer table's stays.

    Args:
        paths: files, folders, archives and packages.
        folder: where to; what it has stays whole.
        wanted: the part that is brought.

    Raises:
        TableError: nothing is a table, one was edited or cannot be read, nothing of them is wanted, or the folder
            cannot be written. Then nothing is written.
    """
    every: list[Table] = []
    for path in paths:
        read = [_checked(content, name) for name, content in _contents(path)]
        if not read:
            raise TableError(f"{path} holds no table: expected what `tuner export` wrote, or an archive of it")
        every += read
    found: dict[str, list[Table]] = {}
    for each in map(wanted.part, every):
        if each.rows or wanted == Wanted():
            found.setdefault(each.file_name, []).append(each)
    if not found:
        raise TableError(_unwanted(every, wanted))
    files.make_folder(folder)
    with files.sole_writer(folder):  # each writes what it read there and its own, so two would lose rows
        united = [_united(tables, folder) for _, tables in sorted(found.items())]
        files.write_texts({folder / whole.file_name: whole.dumps() for whole, _, _ in united}, error=TableError)
    return [
        Brought(folder / whole.file_name, len(whole.rows), len(whole.families), new, left_out)
        for whole, new, left_out in united
    ]


def _unwanted(tables: Iterable[Table], wanted: Wanted) -> str:
    slugs = sorted({each.device.slug for each in tables})
    if not any(map(wanted.is_of, slugs)):
        return f"no table of {wanted.device} there: expected one of {', '.join(slugs)}"
    whose = "" if wanted.device is None else f" of {wanted.device}"
    if wanted.families is None:
        return f"no row{whose} there can be read"
    return f"no row{whose} is of a family of the suite: `tuner run --suite` tunes them"


def _united(tables: list[Table], folder: Path) -> tuple[Table, int, tuple[str, ...]]:
    """The newest of several tables with what only the others have, how many rows are new, and what was left out."""
    there = folder / tables[0].file_name
    files.check_regular(there, "table", error=TableError)
    before = [_whole(there)] if there.exists() else []
    ordered = sorted([*before, *tables], key=lambda each: each.date, reverse=True)
    newest = {row.problem: row for each in reversed(ordered) for row in each.rows}
    rows = {row.problem: row for row in newest_versions(newest.values())}
    left_out = [str(fault) for each in tables for fault in each.faults]
    if stale := len(newest) - len(rows):
        said = "1 row" if stale == 1 else f"{stale} rows"
        left_out.append(f"{said} left out: a newer version of their kernel has rows")
    shipped = families.shippable((family for each in ordered for family in each.families), rows)
    whole = replace(ordered[0], rows=tuple(rows.values()), families=tuple(shipped), faults=())
    known = {row for each in before for row in each.rows}
    return whole, len(set(rows.values()) - known), tuple(left_out)


def _whole(path: Path) -> Table:
    """A table that is about to be replaced: what cannot be read of it would be lost."""
    found = _checked(files.read_bytes(path, "table", error=TableError), str(path))
    if found.faults:
        first = found.faults[0]
        raise TableError(
            f"{path}: {first.where} cannot be read and would be lost: {first.found}: upgrade triton-tuner, or write "
            "into another folder"
        )
    return found


def _checked(content: bytes, name: str) -> Table:
    read = table.from_parsed(table.parse(content, name))
    for fault in read.faults:
        if fault.check == "digest":
            raise TableError(f"{name}: {fault}: {fault.advice}")
    return read


def _contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """The tables at a path: what they are called in an error, and their bytes."""
    named: Iterable[tuple[str, bytes]]
    if (package := _package(path)) is not None:
        named = ((str(each), table.read_bytes(each)) for each in package.tables())
    elif not path.is_dir() and _is_archive(path):
        named = ((f"{path}/{name}", content) for name, content in _members(path))
    else:
        places = _json_files(path) if path.is_dir() else [path]
        named = ((str(each), files.read_bytes(each, "table", error=TableError)) for each in places)
    return ((name, content) for name, content in named if _is_meant(name, content))


def _package(path: Path) -> TablePackage | None:
    return None if path.exists() else sources.package(str(path))


def _is_meant(name: str, content: bytes) -> bool:
    """Whether a file says that it is a table, or is named as one: then it must be one, and not what is left of one."""
    base = name.rpartition("/")[2]
    return _IS_TABLE in content or (table_files.has_tables_name(base) and not base.startswith("."))


def _json_files(folder: Path) -> list[Path]:
    """The JSON files of a folder and of those in it, sorted; a folder that cannot be listed is an error."""

    def fail(e: OSError) -> None:
        raise TableError(f"cannot list {e.filename}: {e.strerror}") from e

    walked = os.walk(folder, onerror=fail)
    return sorted(Path(where, name) for where, _, names in walked for name in names if name.endswith(".json"))


def _is_archive(path: Path) -> bool:
    """Whether a file is an archive by what it holds, or by its name, however damaged it is."""
    try:
        return path.name.lower().endswith(_ARCHIVES) or zipfile.is_zipfile(path) or tarfile.is_tarfile(path)
    except _DAMAGED:  # it begins as an archive does
        return True


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The JSON files of an archive. They are read where they are: nothing is unpacked."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as zipped:
                for entry in zipped.infolist():
                    if entry.filename.endswith(".json"):
                        _check_size(path, entry.filename, entry.file_size)
                        yield entry.filename, zipped.read(entry)
            return
        with tarfile.open(path) as tarred:
            for member in tarred:
                if member.isfile() and member.name.endswith(".json"):
                    _check_size(path, member.name, member.size)
                    held = tarred.extractfile(member)
                    assert held is not None
                    yield member.name, held.read()
    except _DAMAGED as e:
        raise TableError(f"cannot read the archive {path}: {_why(e)}") from e


def _why(error: Exception) -> str:
    """What is wrong with an archive, and what to do."""
    said = first_line(error).rstrip(":")
    if "encrypted" in said:
        return "it is encrypted: unpack it with its password, and name the folder"
    if isinstance(error, OSError) and error.errno == errno.EINVAL:  # of a place before the file's begin
        said = "it is damaged or cut short"
    return f"{said}: fetch it again"


def _check_size(path: Path, name: str, size: int) -> None:
    if size > files.LARGEST_BYTES:
        raise TableError(f"{path}/{name} has more than {files.LARGEST_BYTES >> 30} GiB: expected a table")
