"""How two editions of tables differ, and what each change is worth."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner import files
from tuner.errors import TableError
from tuner.location import sqlite_path
from tuner.lookup import database, sources, table, table_files
from tuner.lookup.row import Row
from tuner.lookup.table import Table
from tuner.problem import Problem
from tuner.problem.batches import Batches
from tuner.problem.family import Check, Family, Range
from tuner.problem.text import family_name, problem_order

if TYPE_CHECKING:
    from importlib.abc import Traversable

_DIGITS = 4  # of a table's figures: a database holds more


@dataclass(frozen=True, slots=True)
class Change:
    """A problem that both editions have, in rows that differ.

    Attributes:
        before, after: the rows.
        differs: any of "config", "kernel version", "environment" (versions, protocol or triton-tuner), "figures".
    """

    before: Row
    after: Row
    differs: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """The time before over the time after, 1.1 for 1.1 times as fast; None where they cannot be compared.

        Times are compared only where all versions and the protocol agree. They are still of two finals.
        """
        one, other = self.before.made, self.after.made
        if (one.environment, one.protocol) != (other.environment, other.protocol):
            return None
        return self.before.median_us / self.after.median_us


@dataclass(frozen=True, slots=True)
class Moved:
    """A family whose ranges of M, or the checks of what it loses, differ.

    Attributes:
        family: its name.
        before, after: the ranges that the other edition lacks.
        checks: the checks before and after of a family of both, if they differ; an edition may hold it in parts.
    """

    family: str
    before: tuple[Range, ...]
    after: tuple[Range, ...]
    checks: tuple[tuple[Check | None, ...], tuple[Check | None, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One op on one device in two editions.

    Attributes:
        op, device: what; the device's slug.
        digests: the digests of the table before and after; None where an edition has no such table.
        only_before, only_after: rows of problems that the other edition lacks.
        changes: problems that both have, where anything differs.
        moved: families whose ranges or checks differ.
    """

    op: str
    device: str
    digests: tuple[str | None, str | None]
    only_before: tuple[Row, ...]
    only_after: tuple[Row, ...]
    changes: tuple[Change, ...]
    moved: tuple[Moved, ...] = ()

    @property
    def is_none(self) -> bool:
        """Whether the two are equal: a digest covers all but the date."""
        return self.digests[0] == self.digests[1]

    @property
    def gain(self) -> float | None:
        """Geometric mean of the ratios of changed configs that can be compared; None without any."""
        ratios = [change.ratio for change in self.changes if "config" in change.differs]
        known = [math.log(ratio) for ratio in ratios if ratio is not None]
        return math.exp(sum(known) / len(known)) if known else None


def compare(before: Iterable[Table], after: Iterable[Table]) -> list[Difference]:
    """Every op and device of either edition, sorted; also those that are equal."""
    tables = [{(found.op, found.device.slug): found for found in edition} for edition in (before, after)]
    places = sorted({place for edition in tables for place in edition})
    return [_compare(place, *(edition.get(place) for edition in tables)) for place in places]


def _compare(place: tuple[str, str], before: Table | None, after: Table | None) -> Difference:
    old = {row.problem: row for row in (before.rows if before else ())}
    new = {row.problem: row for row in (after.rows if after else ())}
    changes = (_change(old[problem], new[problem]) for problem in sorted(old.keys() & new.keys(), key=problem_order))
    return Difference(
        *place,
        digests=(before.digest if before else None, after.digest if after else None),
        only_before=tuple(old[problem] for problem in sorted(old.keys() - new.keys(), key=problem_order)),
        only_after=tuple(new[problem] for problem in sorted(new.keys() - old.keys(), key=problem_order)),
        changes=tuple(change for change in changes if change.differs),
        moved=tuple(_moved(before.families if before else (), after.families if after else ())),
    )


def _moved(before: Iterable[Family], after: Iterable[Family]) -> Iterator[Moved]:
    editions: list[dict[tuple[Problem, Batches | None], list[Family]]] = [{}, {}]
    for parts, edition in zip(editions, (before, after), strict=True):
        for family in edition:
            parts.setdefault((family.problem, family.batches), []).append(family)
    for problem, batches in sorted(editions[0] | editions[1], key=lambda name: (problem_order(name[0]), name[1] or ())):
        both = [parts.get((problem, batches), []) for parts in editions]
        old, new = ([each for family in parts for each in family.ranges] for parts in both)
        was, now = (tuple(_rounded(family.check) for family in parts) for parts in both)
        checks = (was, now) if all(both) and was != now else None
        if old != new or checks is not None:
            gone, come = (tuple(each for each in mine if each not in its) for mine, its in ((old, new), (new, old)))
            yield Moved(family_name(problem, batches), gone, come, checks)


def _rounded(check: Check | None) -> Check | None:
    return check and Check(check.played, round(check.geomean, _DIGITS), round(check.worst, _DIGITS))


def _change(before: Row, after: Row) -> Change:
    pairs = {
        "config": (before.config, after.config),
        "kernel version": (before.kernel_version, after.kernel_version),
        "environment": (before.made, after.made),
        "figures": (_figures(before), _figures(after)),
    }
    if before.config.kernel != after.config.kernel:
        del pairs["kernel version"]  # of two kernels
    return Change(before, after, tuple(name for name, (one, other) in pairs.items() if one != other))


def _figures(row: Row) -> tuple[float | None, ...]:
    figures = (row.median_us, row.vs_default, row.vs_vendor, row.ties)
    return tuple(None if figure is None else round(figure, _DIGITS) for figure in figures)


def load(where: str, warn: Callable[[str], object]) -> list[Table]:
    """Every table of a place, sorted by op and device: of a file, a folder, a package, a SQLite database or a URL.

    Args:
        where: the place.
        warn: is told what is wrong with a file that is used all the same, or with what is left out of it.

    Raises:
        TableError: it is not there, cannot be read, holds no table, or two of one op and device.
        StoreError: the database cannot be read.
    """
    path = sqlite_path(where)
    if path is None:
        return _of_database(where)
    files.check_regular(path, "table, a folder of tables or a database", error=TableError)
    package = None if path.exists() else sources.package(where)
    if package is not None or path.is_dir():
        paths = table_files.tables_in(path) if package is None else package.tables()
        if not paths:
            raise TableError(f"{where} holds compiled kernels alone: expected tables, named <op>--<device slug>.json")
        return _edition(where, {each.name: _load(each, warn) for each in paths})
    if not path.exists():
        raise sources.absent(path)
    try:
        is_database = database.is_database(path)
    except OSError as e:
        raise TableError(f"cannot read {path}: {e.strerror}: name another") from e
    return _of_database(where) if is_database else [_load(path, warn)]


def _edition(where: str, found: Mapping[str, Table]) -> list[Table]:
    """The tables of a folder, by the names of their files, sorted; of two for the same device neither is preferred."""
    names: dict[tuple[str, str], str] = {}
    for name, each in found.items():
        if (first := names.setdefault((each.op, each.device.slug), name)) != name:
            unite = shlex.join(["tuner", "import", where, "--out", "DIR"])
            raise TableError(
                f"{where} has two tables of {each.op} on {each.device.slug}, {first} and {name}: expected one: delete "
                f"the other, or unite them: {unite}"
            )
    return sorted(found.values(), key=lambda one: (one.op, one.device.slug))


def _load(path: Path | Traversable, warn: Callable[[str], object]) -> Table:
    found = table.load(path)
    for fault in found.faults:
        warn(f"{path}: {fault}")
    return found


def _of_database(where: str) -> list[Table]:
    from tuner.store.store import Store
    from tuner.tables.export import select

    with Store.open(where, read_only=True, another="name another") as store:
        found = select(store.winners(), store.families()).tables
    return sorted(found, key=lambda one: (one.op, one.device.slug))
