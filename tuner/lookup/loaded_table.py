"""A table as lookups read it: its JSON is parsed once, and a row is made when its problem is asked for.

A process asks for few of a large table's problems, and making a row, with the check of its every part, takes several
times as long as parsing it (benchmarks/claims/loading.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from tuner.hardware.device import Device
from tuner.lookup import families, fault, table, table_digest
from tuner.lookup.device_winners import Rows, by_problem
from tuner.lookup.fault import Fault
from tuner.lookup.row import BAD_VALUE, PROBLEM, RESULT, Row, problem_of
from tuner.lookup.table import ParsedTable
from tuner.problem import Problem
from tuner.problem.family import Family

if TYPE_CHECKING:
    from importlib.abc import Traversable

Key = tuple[Any, tuple[Any, ...]]
"""A problem's M and its `family`."""
LARGE = 1_000_000
"""Bytes of a file from which on msgspec's import is worth its time."""
_log = logging.getLogger("tuner.lookup.sources")  # the name under which people silence or keep it


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """What a table's file holds, for lookups.

    Attributes:
        device: the GPU model that the rows were measured on.
        count: how many rows there are.
        rows: see `DeviceWinners`.
        families: as `Table` has them.
        faults: what is wrong with the file and with rows that were left out.
    """

    device: Device
    count: int
    rows: Rows
    families: tuple[Family, ...]
    faults: tuple[Fault, ...] = ()


def load(path: Traversable) -> LoadedTable:
    """Read a table's file. Where it is not as it was written, every row is made and checked at once.

    Raises:
        TableError: it cannot be read, or is no table, or one of a newer format.
    """
    content, name = table.read_bytes(path), str(path)
    document = None
    if len(content) >= LARGE and table_digest.is_as_written(content):
        from tuner.lookup import large_table

        document = large_table.decode(content)
    is_large = document is not None
    parsed = table.parsed(document, name, is_as_written=True) if is_large else table.parse(content, name)
    if parsed.is_as_written:
        try:
            rows = _Rows(parsed, name, is_large=is_large)
            tuned = tuple(families.from_fields(raw, parsed.op) for raw in parsed.families)
        except BAD_VALUE:
            pass  # whoever wrote it knew how to sign it: the reading of every row says what is wrong
        else:
            return LoadedTable(parsed.device, len(parsed.rows), rows, tuned)
    found = table.from_parsed(table.parse(content, name) if is_large else parsed)
    return LoadedTable(found.device, len(found.rows), by_problem(found.rows), found.families, found.faults)


class _Rows(Mapping[Problem, Sequence[Row]]):
    """The rows of a parsed file by their problem: those that are asked for are made, and kept.

    There is none for a problem whose row cannot be read.
    """

    def __init__(self, parsed: ParsedTable, name: str, *, is_large: bool) -> None:
        """Note where each problem's row is; `large_table.decode` gave the rows of a large table.

        Raises:
            One of BAD_VALUE: a row has no key, or two rows have one.
        """
        self._parsed = parsed
        self._name = name
        self._is_large = is_large
        part = attrgetter if is_large else itemgetter
        problems = zip(map(part(*PROBLEM[:-1]), parsed.rows), map(part(PROBLEM[-1]), parsed.rows), strict=True)
        self._places = {_key(parsed.op, parts, extras): place for place, (parts, extras) in enumerate(problems)}
        if len(self._places) != len(parsed.rows):
            raise ValueError("a problem is there twice")
        self._made: dict[int, tuple[Row, ...]] = {}

    def _row(self, place: int) -> tuple[Row, ...]:
        """The row at a place; none where it cannot be read, which is one warning."""
        parsed = self._parsed
        raw = parsed.rows[place]
        if self._is_large:
            raw = {name: getattr(raw, name) for name in (*PROBLEM, *RESULT)}
        try:
            return (Row.from_fields(raw, parsed.op, parsed.kernels, parsed.made),)
        except BAD_VALUE as e:
            _log.warning("%s: %s", self._name, fault.unreadable(f"row {place + 1}", e))
            return ()

    def __contains__(self, problem: object) -> bool:
        return isinstance(problem, Problem) and (problem.m, problem.family) in self._places

    def __getitem__(self, problem: Problem) -> Sequence[Row]:
        place = self._places[problem.m, problem.family]
        if place not in self._made:
            self._made[place] = self._row(place)
        return self._made[place]

    def __iter__(self) -> Iterator[Problem]:
        for m, (op, *parts, extras) in self._places:
            try:
                yield problem_of({"op": op, **dict(zip(PROBLEM, (m, *parts, dict(extras)), strict=True))})
            except BAD_VALUE:
                continue  # a warning says so when its rows are asked for

    def __len__(self) -> int:
        return len(self._places)


def _key(op: str, parts: tuple[Any, ...], extras: Mapping[str, Any]) -> Key:
    return parts[0], (op, *parts[1:], tuple(sorted(extras.items())) if extras else ())
