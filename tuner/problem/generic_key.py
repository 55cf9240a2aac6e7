"""Keys with arbitrary names, for problems of ops without M, N and K such as kernels under `tuner.tuned`.

The `extras` of such a problem hold the values of its key by name. Beside them stand further facts about a call's
arguments that may change which config is fastest, by argument and fact, where they are not the usual ones:

    Mean.dtype = "float32"    the dtype differs from that of most operands
    X.aligned = False         the address (in bytes) or stride (in elements) is no multiple of 16
    stride.one = True         the stride is 1; a matrix's strides say which of its dimensions is contiguous

One more word, `SOURCE`, says which kernel the problem is of: two packages may give their kernels one name, and a kernel
that was edited is another one (`tuner.tuned.source`).

What is no such key, here or as text, is a ProblemError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tuner.errors import ProblemError
from tuner.problem import dtype as dtypes

Extra = int | float | str | bool
LAYOUT = "keyed"
"""The layout of these problems, which have no operands A and B."""
SIZED = (
    "matmul",
    "bmm",
    "grouped_mm",
    "fused_experts",
    "gated_linear",
    "merged_linear",
    "vector_add",
    "softmax",
    "rms_norm",
)
"""Ops whose problems have M, N and K; no other op may have one of these names."""
FACTS = ("dtype", "aligned", "one")
SOURCE = "kernel.source"
"""The name under which extras hold the first 16 hex digits of the hash of the kernel's source."""

_OP = re.compile(r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*")
_NAME = re.compile(rf"[^\W\d]\w*(\.({'|'.join(FACTS)}))?|{re.escape(SOURCE)}")
_PAIR = re.compile(r'\s*([^\s=,][^=,]*?)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s",][^,]*?)\s*(?=,|\Z)')
_PLAIN = re.compile(r"[\w.:/+-]+", re.ASCII)
"""Words that need no quotes, here or in a shell."""
_TRUTH = {"true": True, "false": False}
_UNUSUAL = {
    "aligned": (False, "false, or nothing where it is aligned"),
    "one": (True, "true, or nothing where it is not 1"),
}
"""The only value of these facts: the usual one is not written."""


def fields(op: str, dtype: str, extras: Mapping[str, Extra], shape: tuple[int, int, int]) -> dict[str, Any]:
    """Return the fields of a problem whose key is all in `extras`."""
    check_op(op)
    if shape != (1, 1, 1):
        raise ProblemError(f"{op} has keys of its own: expected M, N and K of 1, got {'x'.join(map(str, shape))}")
    for name, value in extras.items():
        if not _NAME.fullmatch(name):
            raise ProblemError(f"{op}: {name!r} is no name of a key: expected N, or an argument's fact such as X.dtype")
        if canonical(value) is None:
            raise ProblemError(f"{op}: {name} must be a number, a boolean or a string, got {value!r:.60}")
        fact = name.partition(".")[2]
        if fact in _UNUSUAL and canonical(value) is not _UNUSUAL[fact][0]:
            raise ProblemError(f"{op}: {name} is {value!r:.60}: expected {_UNUSUAL[fact][1]}")
    name = dtypes.spelled(dtype)
    return {
        "op": op,
        "m": 1,
        "n": 1,
        "k": 1,
        "a_dtype": name,
        "b_dtype": name,
        "out_dtype": name,
        "layout": LAYOUT,
        "aligned": not any(known.endswith(".aligned") for known in extras),
        "epilogue": "none",
        "precision": "default",
        "extras": tuple((name, canonical(extras[name])) for name in sorted(extras)),
    }


def canonical(value: Any) -> Extra | None:
    """Return a number, boolean or word as files hold it; None for anything else.

    Numbers of numpy and members of enums that are numbers or words become those. JSON has no infinity and NaN, and NaN
    equals nothing, so they become words. Minus zero is zero.
    """
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and value.__hash__:
        value = value.item()
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) + 0.0 if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return str.__str__(value).encode(errors="backslashreplace").decode()
    return None


def check_op(op: str) -> None:
    """Raise ProblemError for an invalid name of an op; the name becomes part of tables' file names."""
    if op in SIZED:
        raise ProblemError(f"{op!r} is an op of tuner.kernels: choose another name, my_{op} for instance")
    check_name(op)


def check_extras(extras: object) -> None:
    """Raise ProblemError for what is no mapping from names."""
    if extras is not None and not (isinstance(extras, Mapping) and all(isinstance(name, str) for name in extras)):
        raise ProblemError(f"extras are {extras!r:.60}: expected a dict of names and values")


def check_name(op: str) -> None:
    """Raise ProblemError for what is no name of an op, of tuner.kernels or of others."""
    if op not in SIZED and not (isinstance(op, str) and _OP.fullmatch(op)):
        raise ProblemError(f"{op!r:.60} is no name of an op: expected letters, digits, '_', and single '-' between")


def words(extras: Iterable[tuple[str, Extra]], dtype: str) -> list[str]:
    """Return a key in words: "M=4096", "float16", "float32(Mean,Rstd)", "unaligned(X)", "one(stride)".

    The source is left out: whoever reads this knows which kernel it is about.
    """
    named: list[str] = []
    facts: dict[str, list[str]] = {}
    for name, value in extras:
        argument, dot, fact = name.partition(".")
        if name == SOURCE:
            continue
        if not dot:
            named.append(f"{name}={cell_of(value) if isinstance(value, str) else value}")
        elif fact == "dtype":
            facts.setdefault(f"dtype {value}", []).append(argument)
        else:
            facts.setdefault({"aligned": "unaligned", "one": "one"}[fact], []).append(argument)
    other = [f"{fact[6:]}({','.join(facts[fact])})" for fact in sorted(facts) if fact.startswith("dtype ")]
    rest = [f"{fact}({','.join(facts[fact])})" for fact in ("unaligned", "one") if fact in facts]
    return [*named, dtype, *other, *rest]


def cells(text: str) -> dict[str, str]:
    """Read "M=4096,N=1024" into cells by name. A cell in double quotes may hold commas, and keeps its quotes."""
    found: dict[str, str] = {}
    start = 0
    while start <= len(text):
        pair = _PAIR.match(text, start)
        if pair is None:
            raise ProblemError(f"not a problem: {text!r:.60}: expected NAME=VALUE pairs, for instance M=4096,N=1024")
        name, cell = pair.groups()
        if name in found:
            raise ProblemError(f"not a problem: {text!r}: {name} is there twice")
        found[name] = cell
        start = pair.end() + 1
    return found


def value(cell: str) -> Extra:
    """Return a cell's value: an integer, a number, true or false, or else a word.

    A cell in double quotes is a JSON string, and always a word: "true", "12" and "" are.
    """
    if cell.startswith('"'):
        try:
            return str(json.loads(cell))
        except ValueError as e:
            raise ProblemError(f'{cell!r} is no word in quotes ({e}): expected one such as "a, b"') from e
    if cell.lower() in _TRUTH:
        return _TRUTH[cell.lower()]
    for kind in (int, float):
        try:
            number = kind(cell)
        except ValueError:
            continue
        return cell if math.isnan(number) else number
    return cell


def cell_of(extra: Extra) -> str:
    """Return the cell that `cells` and `value` read as this value."""
    if isinstance(extra, bool):
        return str(extra).lower()
    if not isinstance(extra, str):
        return repr(extra)
    return extra if _PLAIN.fullmatch(extra) and value(extra) == extra else json.dumps(extra)
