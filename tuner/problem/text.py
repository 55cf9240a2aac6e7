"""Problems as text: read from and written as "M=4096,N=1024,dtype=bf16", matched and sorted by what they hold.

A text that is no problem is a ProblemError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuner.errors import ProblemError
from tuner.problem import Problem, dtype, generic_key, suite
from tuner.problem.batches import Batches, shown
from tuner.problem.family import Ladder
from tuner.problem.generic_key import Extra

UNIT_SIZES = {"vector_add": ("n", "k"), "softmax": ("k",), "rms_norm": ("k",)}
"""Sizes that are 1 in every problem of an op, so nobody has to type them."""
ONE_M = ("vector_add", "softmax")
"""Ops of which a command tunes the M of a call alone; of others it tunes a range that holds it."""
_SIZES = ("m", "n", "k")
_PARTS = (*_SIZES, "a_dtype", "b_dtype", "out_dtype", "layout", "epilogue", "precision", "aligned")
_COLUMNS = (*suite.REQUIRED, *suite.OPTIONAL, *suite.OTHER_OPS[1:])


def read(op: str, cells: Mapping[str, str]) -> Problem:
    """Build a problem of an op from cells by column name, in any case; a missing cell means the problem's default."""
    return suite.problem_of(_row(op, cells))


def read_all(op: str, cells: Mapping[str, str]) -> Sequence[Problem | Ladder]:
    """Build what cells ask for as `read` does, where m and batch may be ranges."""
    return suite.named(_row(op, cells))


def _row(op: str, cells: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, cell in cells.items():
        column = name.lower()
        if column not in _COLUMNS:
            raise ProblemError(f"unknown name {name!r}: known are {', '.join(_COLUMNS)}")
        if column in found:
            raise ProblemError(f"{name} is there twice")
        found[column] = cell
    found = dict.fromkeys(UNIT_SIZES.get(op, ()), "1") | found
    if missing := [size.upper() for size in _SIZES if size not in found]:
        expected = ",".join(f"{size.upper()}=4096" for size in _SIZES if size not in UNIT_SIZES.get(op, ()))
        raise ProblemError(f"missing {', '.join(missing)}: expected for instance {expected},dtype=bf16")
    return {**found, "op": op}


def write(problem: Problem, **ranges: str) -> str:
    """Return the text that `read` turns into this problem, without defaults: "M=4096,N=1024,dtype=bfloat16".

    Args:
        problem: the problem.
        ranges: what stands in place of the problem's M or batch, for `read_all`: M="1-512".
    """
    fields = problem.fields()
    left_out = UNIT_SIZES.get(problem.op, ())
    cells = {size.upper(): str(fields[size]) for size in _SIZES if size not in left_out or fields[size] != 1}
    cells["dtype"] = problem.a_dtype
    cells |= {name: str(value).lower() for name, value in problem.extras}
    for name in ("b_dtype", "layout", "out_dtype", "epilogue", "precision", "aligned"):
        if read(problem.op, cells).fields()[name] != fields[name]:
            cells[name] = str(fields[name]).lower()
    return ",".join(f"{name}={cell}" for name, cell in (cells | ranges).items())


def write_key(problem: Problem) -> str:
    """Return the text that `generic_key.cells` reads as this problem's key: "M=4096,N=1024,dtype=float16"."""
    key = [(name, value) for name, value in problem.extras if name != generic_key.SOURCE]
    pairs = [*key, ("dtype", problem.a_dtype)]
    return ",".join(f"{name}={generic_key.cell_of(value)}" for name, value in pairs)


def key_values(text: str) -> tuple[tuple[str, Extra], ...]:
    """Parse "N=1024,dtype=fp16" into the values that `has` looks for in a problem."""
    cells = generic_key.cells(text).items()
    return tuple((name, dtype.spelled(cell) if name == "dtype" else generic_key.value(cell)) for name, cell in cells)


def part_of(name: str, wanted: Extra) -> tuple[str, Extra] | None:
    """Return the part of a problem with M, N and K that a name stands for, in any case, and the value it must have.

    "dtype" is that of most operands. None for what is in `extras`.
    """
    part = "a_dtype" if name.lower() == "dtype" else name.lower()
    if part not in _PARTS:
        return None
    return part, dtype.spelled(str(wanted)) if part.endswith("dtype") else wanted


def has(problem: Problem, key: Iterable[tuple[str, Extra]]) -> bool:
    """Return whether a problem's key holds these values; "dtype" is that of most operands.

    Of a problem with M, N and K, these and its other parts count, too: see `part_of`.
    """
    known = {**dict(problem.extras), "dtype": problem.a_dtype}

    def holds(name: str, wanted: Extra) -> bool:
        part = None if problem.is_keyed else part_of(name, wanted)
        return bool(known.get(name) == wanted if part is None else getattr(problem, part[0]) == part[1])

    return all(holds(name, wanted) for name, wanted in key)


def names(problem: Problem) -> tuple[str, ...]:
    """Return what `has` can ask of a problem; those of a problem with M, N and K may be typed in any case."""
    extras = (name for name, _ in problem.extras if name != generic_key.SOURCE)
    return (*(() if problem.is_keyed else _PARTS), *extras, "dtype")


def family_name(problem: Problem, batches: Batches | None = None) -> str:
    """Return a problem's words without its M: "matmul Mx4096x4096 bfloat16 nt"; `batches` stand for its own."""
    return shown(str(problem).replace(f" {problem.m}x", " Mx", 1), problem, batches)


def problem_order(problem: Problem) -> tuple[Any, ...]:
    """Return the sort key of listings; `extras` are compared as text, since those of two ops may not be comparable."""
    fields = problem.fields()
    extras = json.dumps(fields.pop("extras"), sort_keys=True)
    return (*fields.values(), extras)
