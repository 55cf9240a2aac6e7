"""Problems as one types them, "M=4096,N=1024,dtype=bf16": read from cells by name, written, compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tuner.errors import ProblemError
from tuner.problem import Problem, dtype, generic_key, suite
from tuner.problem.generic_key import Extra

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


def typed_key(problem: Problem) -> str:
    """What `generic_key.cells` reads as this problem: "M=4096,N=1024,dtype=float16"."""
    pairs = [*problem.extras, ("dtype", problem.a_dtype)]
    return ",".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in pairs)


def asked(text: str) -> tuple[tuple[str, Extra], ...]:
    """Read "N=1024,dtype=fp16" as values that a problem's key may have: `has` compares them.

    Raises:
        ProblemError: a part that is no NAME=VALUE, or a dtype that is none.
    """
    cells = generic_key.cells(text).items()
    return tuple((name, dtype.spelled(cell) if name == "dtype" else generic_key.value(cell)) for name, cell in cells)


def has(problem: Problem, key: Iterable[tuple[str, Extra]]) -> bool:
    """Whether a problem has these values in its key, M, N and K among them; "dtype" is that of most operands."""
    sizes = {} if problem.is_keyed else dict(zip("MNK", problem.shape, strict=True))
    known = {**sizes, **dict(problem.extras), "dtype": problem.a_dtype}
    return all(known.get(name) == wanted for name, wanted in key)
