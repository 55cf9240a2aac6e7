"""A table as lookups read it: rows found by the text of their problems, and made when they are asked for.

A file that is as `tuner export` wrote it holds one row a line, which begins with its problem in one form. So nothing is
parsed but the head and the rows that somebody wants; these are found by searching the file: a process asks once for
each problem (benchmarks/claims/loading.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.hardware.device import Device
from tuner.lookup import table, table_digest
from tuner.lookup.device_winners import Rows, by_problem
from tuner.lookup.regret import Regrets
from tuner.lookup.row import BAD_VALUE, PROBLEM, Row, problem_of, reason
from tuner.lookup.table import Header
from tuner.problem import Problem

if TYPE_CHECKING:
    from importlib.abc import Traversable

_ROWS = b',\n  "rows": ['
_END = b"\n  ]\n}\n"
_ROW = b'\n    {"m": '
_RESULT = b'}, "kernel": '
"""How a problem ends, its last part being an object without objects in it, and what follows. In a word its quotes would
have backslashes before them."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a table's file holds, for lookups.

    Attributes:
        device: the GPU model the rows were measured on.
        count: how many rows there are.
        rows, groups: see `Shelf`.
        regret: by op, see `Table`.
        faults: what is wrong with the file and with rows that were left out.
    """

    device: Device
    count: int
    rows: Rows
    groups: Rows
    regret: Mapping[str, Regrets]
    faults: tuple[str, ...] = ()


def load(path: Traversable) -> Reading:
    """Read a table's file: by its index where it is as it was written, else row by row.

    Raises:
        TableError: it cannot be read, or is no table, or one of a newer format.
    """
    content, name = table.read_bytes(path), str(path)
    index = _indexed(content, name)
    if index is not None:
        header = index.header
        return Reading(header.device, index.count, _ByProblem(index), _ByGroup(index), {header.op: header.regret})
    found = table.loads(content, name)
    return Reading(found.device, len(found.rows), *by_problem(found.rows), {found.op: found.regret}, found.faults)


class _Index:
    """The rows of a file by their texts. What is made is kept."""

    def __init__(self, name: str, header: Header, lines: bytes, count: int) -> None:
        """Keep a file.

        Args:
            name: what messages call it.
            header: what it says of all rows.
            lines: its rows, each after a line's end.
            count: how many they are.
        """
        self.header = header
        self.count = count
        self._name = name
        self._lines = lines
        self._made: dict[int, Row | None] = {}
        self._groups: tuple[bytes, ...] | None = None

    def row(self, text: bytes) -> Row | None:
        """The row of a problem's text, None where there is none."""
        at = self._lines.find(b"\n    " + text + _RESULT[1:])
        return None if at < 0 else self._row_at(at)

    def rows(self) -> Iterator[Row]:
        """All rows, in their order."""
        return (row for at in self._places(_ROW) if (row := self._row_at(at)) is not None)

    def group(self, shared: bytes) -> Iterator[Row]:
        """The rows whose problems have a text in common but for M."""
        inside = self._places(b", " + shared + _RESULT[1:])
        places = (self._lines.rfind(b"\n", 0, at) for at in inside)
        return (row for at in places if (row := self._row_at(at)) is not None)

    def groups(self) -> tuple[bytes, ...]:
        """What texts of problems have in common but for M, each once."""
        if self._groups is None:
            texts = (line[: line.index(_RESULT) + 1] for line in self._lines.split(b"\n    ")[1:])
            self._groups = tuple(dict.fromkeys(map(_without_m, texts)))
        return self._groups

    def _places(self, sought: bytes) -> Iterator[int]:
        at = self._lines.find(sought)
        while at >= 0:
            yield at
            at = self._lines.find(sought, at + 1)

    def _row_at(self, at: int) -> Row | None:
        """The row after a line's end; None for one that cannot be, which is one warning."""
        if at in self._made:
            return self._made[at]
        end = self._lines.find(b"\n", at + 1)
        line = self._lines[at + 1 : end if end >= 0 else None].rstrip(b",")
        row: Row | None = None
        try:
            row = Row.from_fields(json.loads(line), self.header.op, self.header.kernels, self.header.made)
        except BAD_VALUE as e:
            number = self._lines.count(b"\n", 0, at + 1)
            _log.warning("%s: row %d left out: %s", self._name, number, reason(e))
        return self._made.setdefault(at, row)


def _indexed(content: bytes, name: str) -> _Index | None:
    """The index of a file; None where it is not as it was written, so that all of it must be looked at."""
    start = content.find(_ROWS)
    if start < 0 or not content.endswith(_END) or not table_digest.is_as_written(content):
        return None
    lines = content[start + len(_ROWS) : -len(_END)]
    count = lines.count(_ROW)
    if not count == lines.count(b"\n") == lines.count(_RESULT):
        return None  # whoever wrote it knew how to sign it, and writes otherwise
    try:
        document = json.loads(content[:start] + b"}")
    except ValueError:
        return None
    return _Index(name, table.header_of(document, name), lines, count)


class _ByProblem(Mapping[Problem, Sequence[Row]]):
    """An index's rows by problem, one each. The length counts what cannot be, too."""

    def __init__(self, index: _Index) -> None:
        self._index = index

    def __getitem__(self, problem: Problem) -> Sequence[Row]:
        row = self._index.row(_text(problem)) if problem.op == self._index.header.op else None
        if row is None:
            raise KeyError(problem)
        return (row,)

    def __iter__(self) -> Iterator[Problem]:
        return (row.problem for row in self._index.rows())

    def __len__(self) -> int:
        return self._index.count


class _ByGroup(Mapping[Problem, Sequence[Row]]):
    """An index's rows by `Problem.group()`. Going through the groups makes no row, going through their items all."""

    def __init__(self, index: _Index) -> None:
        self._index = index

    def __getitem__(self, group: Problem) -> Sequence[Row]:
        found = tuple(self._index.group(_without_m(_text(group)))) if group.op == self._index.header.op else ()
        if not found:
            raise KeyError(group)
        return found

    def __iter__(self) -> Iterator[Problem]:
        for shared in self._index.groups():
            try:
                yield problem_of({"op": self._index.header.op} | json.loads(b'{"m": 1, ' + shared + b"}"))
            except BAD_VALUE:
                continue  # said when its rows are asked for

    def __len__(self) -> int:
        return len(self._index.groups())


def _text(problem: Problem) -> bytes:
    """A problem as a row begins with it."""
    fields = problem.fields()
    return json.dumps({name: fields[name] for name in PROBLEM})[:-1].encode()


def _without_m(text: bytes) -> bytes:
    return text.partition(b", ")[2]
