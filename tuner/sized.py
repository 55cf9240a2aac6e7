"""Problems that have M, N and K as one types them, by the names of a suite's columns: "M=4096,N=1024,dtype=bf16"."""

from __future__ import annotations

from collections.abc import Mapping

from tuner import suite
from tuner.errors import ProblemError
from tuner.problem import Problem

ONE = {"vector_add": ("n", "k"), "softmax": ("k",)}
"""Sizes that are 1 in every problem of an op: they need not be typed."""
_SIZES = ("m", "n", "k")
_COLUMNS = (*suite.REQUIRED, *suite.OPTIONAL, *suite.OTHER_OPS[1:])


def read(op: str, cells: Mapping[str, str]) -> Problem:
    """The problem of an op that cells describe, whatever their case; what is missing is the problem's own default.

    Raises:
        ProblemError: a name that no column has, one that is there twice, a value that cannot be, a size that is
            missing.
    """
    found: dict[str, str] = {}
    for name, cell in cells.items():
        column = name.lower()
        if column not in _COLUMNS:
            raise ProblemError(f"unknown name {name!r}: known are {', '.join(_COLUMNS)}")
        if column in found:
            raise ProblemError(f"{name} is there twice")
        found[column] = cell
    found = dict.fromkeys(ONE.get(op, ()), "1") | found
    if missing := [size.upper() for size in _SIZES if size not in found]:
        expected = ",".join(f"{size.upper()}=4096" for size in _SIZES if size not in ONE.get(op, ()))
        raise ProblemError(f"missing {', '.join(missing)}: expected for instance {expected},dtype=bf16")
    return suite.problem_of({**found, "op": op})


def typed(problem: Problem) -> str:
    """What `read` makes this problem of, without what is the default: "M=4096,N=1024,dtype=bfloat16"."""
    fields = problem.fields()
    left_out = ONE.get(problem.op, ())
    cells = {size.upper(): str(fields[size]) for size in _SIZES if size not in left_out or fields[size] != 1}
    cells["dtype"] = problem.a_dtype
    cells |= {name: str(value).lower() for name, value in problem.extras}
    for name in ("b_dtype", "layout", "out_dtype", "epilogue", "precision", "aligned"):
        if read(problem.op, cells).fields()[name] != fields[name]:
            cells[name] = str(fields[name]).lower()
    return ",".join(f"{name}={cell}" for name, cell in cells.items())
