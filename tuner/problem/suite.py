"""Suites: lists of problems in CSV files, the user's own or those of the package."""

from __future__ import annotations

import csv
import importlib.resources
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import files
from tuner.errors import KernelError, ProblemError, SuiteError, UsageError
from tuner.problem import Problem, family
from tuner.problem.family import Ladder

REQUIRED = ("m", "n", "k", "dtype", "layout")
OPTIONAL = (
    *("a_dtype", "b_dtype", "out_dtype", "epilogue", "precision", "aligned", "scaling", "fast_accum", "b_padded"),
    "invariant",
)
"""Columns that are passed to the problem; an empty cell means the problem's default."""
OTHER_OPS = ("op", "batch", "groups", "top_k", "listed", "eps", "parts")
"""Columns for ops other than matmul: the op's name, then further keys that go into `Problem.extras`."""
REMARKS = ("group", "count", "note")
"""Columns for people, which change nothing that is measured; `count` is how often a step or a program calls it. Any
other column is an error, because a misspelt one would be ignored silently."""

_KNOWN = (*REQUIRED, *OPTIONAL, *OTHER_OPS, *REMARKS)
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}

Read = Callable[[Mapping[str, str]], Problem | Sequence[Problem | Ladder]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A problem of a suite.

    Attributes:
        problem: the problem.
        groups: the groups that its lines name; none where the suite has no such column.
        ladder: the first ladder of which it is a rung, where a line names a range of Ms.
    """

    problem: Problem
    groups: tuple[str, ...]
    ladder: Ladder | None = None


def names() -> list[str]:
    """Return the names of the package's suites, sorted."""
    return sorted(entry.name.removesuffix(".csv") for entry in _folder().iterdir() if entry.name.endswith(".csv"))


def load(name_or_path: str | Path) -> list[Problem]:
    """Return the problems of a suite, each once, in the file's order.

    Args:
        name_or_path: as `entries` takes it.

    Raises:
        UsageError, SuiteError: see `entries`.
    """
    return [entry.problem for entry in entries(name_or_path)]


def load_with_ladders(name_or_path: str | Path, *, read: Read | None = None) -> list[Problem | Ladder]:
    """Return the problems of a suite as `load` does, but a range of M as one ladder in place of its rungs.

    Args:
        name_or_path: as `entries` takes it.
        read: for a kernel with columns of its own, makes a problem from a line's cells (`KernelSpec.read`), without
            group, note and count.

    Raises:
        UsageError, SuiteError: see `entries`.
    """
    listed = [each for each, _ in _listed(name_or_path, read)]
    rungs = {rung for each in listed if isinstance(each, Ladder) for rung in each.rungs}
    return [each for each in dict.fromkeys(listed) if isinstance(each, Ladder) or each not in rungs]


def entries(name_or_path: str | Path) -> list[Entry]:
    """Read a suite: each problem once, in the file's order, with every group that its lines name.

    Args:
        name_or_path: a suite of the package ("demo") or a CSV file, whose name ends in .csv or holds a slash.
            The columns are m, n, k, dtype and layout; and optionally a_dtype, b_dtype, out_dtype, epilogue, precision,
            aligned, scaling, fast_accum, b_padded, invariant, op, batch, groups, top_k, listed, eps, parts, group,
            count and note.
            m and batch may be a range (1-512) or a list ("1,8,64"). Lines that begin with # are comments.

    Raises:
        UsageError: no suite of the package has that name.
        SuiteError: the file cannot be read, or a line describes no valid problem; the message names the line.
    """
    groups: dict[Problem, dict[str, None]] = {}
    ladders: dict[Problem, Ladder] = {}
    for each, group in _listed(name_or_path):
        for problem in each.rungs if isinstance(each, Ladder) else (each,):
            found = groups.setdefault(problem, {})
            if group:
                found[group] = None
            if isinstance(each, Ladder):
                ladders.setdefault(problem, each)
    return [Entry(problem, tuple(found), ladders.get(problem)) for problem, found in groups.items()]


def _listed(name_or_path: str | Path, read: Read | None = None) -> list[tuple[Problem | Ladder, str]]:
    """Return what the lines of a suite ask for, with the group that each names, "" for none."""
    name = os.fspath(name_or_path)
    if name.endswith(".csv") or "/" in name:
        return _parse(name, _read(Path(name)), read)
    if name not in names():
        raise UsageError(f"unknown suite {name!r}: known are {', '.join(names())}; the name of a file must end in .csv")
    return _parse(name, (_folder() / f"{name}.csv").read_text(encoding="utf-8"), read)


def _folder() -> Any:
    return importlib.resources.files("tuner.problem") / "suites"


def _read(path: Path) -> str:
    try:
        return files.read_bytes(path, "suite", error=SuiteError).decode()
    except UnicodeDecodeError as e:
        raise SuiteError(f"{path} is no CSV file: it is not UTF-8 text: save it as CSV in UTF-8") from e


def _parse(name: str, text: str, read: Read | None) -> list[tuple[Problem | Ladder, str]]:
    rows = _rows(name, text)
    line, header = next(rows, (0, []))
    if not header:
        expected = ",".join(REQUIRED) if read is None else "as the key has them"
        raise SuiteError(f"{name} is empty: expected a line of column names, {expected}")
    _check_header(f"{name} line {line}", header)
    columns = header if read is not None else _columns(f"{name} line {line}", header)
    listed: list[tuple[Problem | Ladder, str]] = []
    for line, cells in rows:
        where = f"{name} line {line}"
        if len(cells) != len(columns):
            raise SuiteError(f"{where}: expected {len(columns)} values ({','.join(columns)}), found {len(cells)}")
        if not any(cells):
            raise SuiteError(f"{where}: every value is empty: expected {','.join(columns)}, or no such line")
        row = dict(zip(columns, cells, strict=True))
        listed += [(each, row.get("group", "")) for each in _named(where, row, read or named)]
    if not listed:
        expected = "such as 4096,4096,1024,bfloat16,nt" if read is None else f"with values of {','.join(columns)}"
        raise SuiteError(f"{name} names no problem: expected lines {expected}")
    return listed


def _rows(name: str, text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            cells = next(csv.reader([line], strict=True))
        except csv.Error as e:
            raise SuiteError(f"{name} line {number}: not CSV: {e}") from e
        if not cells[0].lstrip().startswith("#"):  # a spreadsheet quotes a comment that has a comma
            yield number, [cell.strip() for cell in cells]


def _check_header(where: str, header: list[str]) -> None:
    """Refuse what spreadsheets write in some countries, and a column whose values nobody or another would take."""
    for mark, called in {";": "semicolons", "\t": "tabs"}.items():
        if len(header) == 1 and mark in header[0]:
            raise SuiteError(f"{where}: found {called} between the columns, expected commas: save it with commas")
    for number, column in enumerate(header, start=1):
        if not column:
            raise SuiteError(f"{where}: column {number} of {len(header)} has no name: name it, or delete its comma")
        if header.count(column) > 1:
            raise SuiteError(f"{where}: the column {column!r} is there twice")


def _columns(where: str, header: list[str]) -> list[str]:
    columns = [column.lower() for column in header]
    for column in columns:
        if column not in _KNOWN:
            raise SuiteError(f"{where}: {_unknown(column)}")
        if columns.count(column) > 1:
            raise SuiteError(f"{where}: the column {column!r} is there twice")
    if missing := [column for column in REQUIRED if column not in columns]:
        raise SuiteError(f"{where}: missing {', '.join(missing)}: expected at least {','.join(REQUIRED)}")
    return columns


def _unknown(column: str) -> str:
    return f"unknown column {column!r}: known are {', '.join(_KNOWN)}"


def problem_of(row: Mapping[str, str]) -> Problem:
    """Build a problem from cells by column name; an empty or missing cell means the problem's default.

    Raises:
        ProblemError: a cell is invalid, a size is missing, or no column has such a name.
    """
    for name in row:
        if name not in _KNOWN:
            raise ProblemError(_unknown(name))
    given: dict[str, Any] = {name: row[name] for name in (*REQUIRED[3:], *OPTIONAL, "op") if row.get(name)}
    for name in ("aligned", "fast_accum", "b_padded", "invariant"):
        if name in given:
            given[name] = _truth(name, given[name])
    extras = {name: _OF_EXTRA.get(name, _size)(name, row[name]) for name in OTHER_OPS[1:] if row.get(name)}
    if extras and given.get("op", "matmul") == "matmul":
        raise ProblemError(f"{next(iter(extras))} is for other ops than matmul: expected op, bmm or grouped_mm")
    if absent := [name for name in REQUIRED[:3] if not row.get(name)]:
        raise ProblemError(f"there is no {absent[0]}: expected m, n and k")
    return Problem(*(_size(name, row[name]) for name in REQUIRED[:3]), **given, extras=extras)


def named(row: Mapping[str, str]) -> Sequence[Problem | Ladder]:
    """Build what cells by column name ask for: a problem, or those of a list or a range of Ms or batches.

    Raises:
        ProblemError: see `problem_of`; or a range cannot be.
    """

    def make(m: int, batch: int | None) -> Problem:
        return problem_of({**row, "m": str(m)} | ({} if batch is None else {"batch": str(batch)}))

    cell = row.get("batch")
    return family.grid(family.sizes(row["m"]), family.sizes(cell, "batch") if cell else [None], make)


def _named(where: str, row: Mapping[str, str], read: Read) -> Sequence[Problem | Ladder]:
    """What a line asks for."""
    try:
        found = read(row if read is named else {name: cell for name, cell in row.items() if name not in REMARKS})
    except (ProblemError, KernelError) as e:  # of a kernel's own `make_inputs`, for instance
        raise SuiteError(f"{where}: {e}") from e
    return [found] if isinstance(found, Problem) else found


def _size(name: str, cell: str) -> int:
    try:
        return int(cell)
    except (TypeError, ValueError):
        shown = name.upper() if len(name) == 1 else name
        raise ProblemError(f"{shown} must be an integer, got {cell!r:.60}") from None


def _number(name: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ProblemError(f"{name} must be a number, got {cell!r:.60}") from None


def _truth(name: str, cell: str) -> bool:
    if cell.lower() not in _TRUTH:
        raise ProblemError(f"{name} must be one of {', '.join(_TRUTH)}, got {cell!r}")
    return _TRUTH[cell.lower()]


_OF_EXTRA: dict[str, Callable[[str, str], Any]] = {"listed": _truth, "eps": _number, "parts": lambda _, cell: cell}
"""What reads the cells of further keys; all others are sizes."""
