"""What table files, and the folders and packages that hold them, have for a device.

A table that cannot be read raises nothing: it is one warning, and the others are used.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tuner.errors import TableError
from tuner.hardware.device import Device
from tuner.lookup import families, loaded_table
from tuner.lookup.device_winners import DeviceWinners, by_problem, merged
from tuner.lookup.fault import Fault
from tuner.lookup.loaded_table import LoadedTable
from tuner.lookup.row import Row
from tuner.problem.family import Family

if TYPE_CHECKING:
    from importlib.abc import Traversable

Read = Callable[["Traversable"], LoadedTable]
KERNELS_SUFFIX = ".kernels"
"""Of a folder of compiled kernels beside tables, which `tuner.launch.binaries` reads."""
_log = logging.getLogger("tuner.lookup.sources")  # the name under which people silence or keep them


def of_folder(name: str, slug: str, folder: Traversable) -> DeviceWinners:
    """The rows for a device in a folder's tables."""
    paths = tables_in(folder)
    mine = [path for path in paths if slug_in(path) == slug]
    others = sorted({slug_in(path) for path in paths} - {slug})
    if mine or not others:
        return of_tables(name, slug, mine)
    return holding(name, (), f"nothing for {slug}; it has tables for {', '.join(others)}")


def of_tables(name: str, slug: str, paths: Iterable[Traversable], read: Read = loaded_table.load) -> DeviceWinners:
    """The rows for a device in tables. One that cannot be read is a warning."""
    loaded, trouble = _read_all(name, paths, read)
    mine = [each for each in loaded if each.device.slug == slug]
    others = sorted({each.device.slug for each in loaded} - {slug})
    count = sum(each.count for each in mine)
    note = f"nothing for {slug}: it is for {', '.join(others)}" if others and not count else counted(count, slug)
    rows = merged([each.rows for each in mine])
    known = families.ByKey(family for each in mine for family in each.families)
    return DeviceWinners(name, rows, "; ".join([note, *trouble]), known)


def devices(paths: Iterable[Traversable]) -> list[Device]:
    """The devices that tables are for, each once, of those that can be read: `of_tables` warns of the others."""
    found: dict[str, Device] = {}
    for path in paths:
        with contextlib.suppress(TableError):
            device = loaded_table.load(path).device
            found.setdefault(device.slug, device)
    return [*found.values()]


def tables_in(folder: Traversable) -> list[Traversable]:
    """The files of a folder that have a table's name, by name.

    Raises:
        TableError: it cannot be listed, or holds neither a table nor a folder of kernels.
    """
    try:
        entries = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as e:
        raise TableError(f"cannot list {folder}: {e.strerror}") from e
    found = [path for path in entries if has_tables_name(path.name)]
    if not found and not any(path.name.endswith(KERNELS_SUFFIX) for path in entries):
        raise TableError(f"{folder} holds no table: expected files named <op>--<device slug>.json")
    return found


def has_tables_name(name: str) -> bool:
    """Whether a file is named `<op>--<device slug>.json`, as lookups ask for it."""
    return name.endswith(".json") and "--" in name


def slug_in(path: Traversable) -> str:
    """The slug in a table's file name."""
    return path.name[:-5].rpartition("--")[2]


def holding(name: str, rows: Iterable[Row], note: str, tuned: Iterable[Family] = ()) -> DeviceWinners:
    """Rows and families, the preferred first, as what a source holds."""
    return DeviceWinners(name, by_problem(rows), note, families.ByKey(tuned))


def unusable(name: str, error: TableError) -> DeviceWinners:
    """Log one warning, and hold nothing."""
    _log.warning("%s is not used: %s", name, error)
    return holding(name, (), f"not used: {error}")


def counted(rows: int, slug: str) -> str:
    """How many rows there are, in words."""
    return f"{rows} tuned {'problem' if rows == 1 else 'problems'} for {slug}" if rows else f"nothing for {slug}"


def warn_of_faults(name: str, faults: Sequence[Fault]) -> None:
    """Log one warning for a file, however many faults it has: a mangled table must not fill the log."""
    if faults:
        more = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
        _log.warning("%s: %s%s", name, "; ".join(map(str, faults[:3])), more)


def _read_all(name: str, paths: Iterable[Traversable], read: Read) -> tuple[list[LoadedTable], list[str]]:
    """The tables that can be read, and what is wrong with the others: one warning each."""
    loaded: list[LoadedTable] = []
    trouble: list[str] = []
    for path in paths:
        try:
            loaded.append(read(path))
        except TableError as e:
            _log.warning("a table of %s is not used: %s", name, e)
            trouble.append(f"not used: {e}")
        else:
            warn_of_faults(str(path), loaded[-1].faults)
            trouble.extend(map(str, loaded[-1].faults))
    return loaded, trouble
