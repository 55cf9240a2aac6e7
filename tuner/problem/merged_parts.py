"""The parts of a problem of `merged_linear`: how many of its columns are of which weight."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tuner.errors import ProblemError

if TYPE_CHECKING:
    from tuner.problem.problem import Problem

PARTS = "parts"
"""The extra that holds them, as "4096+1024+1024": q's rows, k's and v's."""
MOST_ROWS = 2
"""The most rows of x that its kernel takes: for more, large weights were faster by a product of each."""
_WORDS = re.compile(r"[1-9]\d{0,9}(\+[1-9]\d{0,9}){1,2}")


def parts_text(widths: Iterable[int]) -> str:
    """The extra's value for weights of so many rows."""
    return "+".join(map(str, widths))


def check_parts(given: object, n: int) -> str:
    """Return the value of the extra, which must be two or three numbers whose sum is N.

    Raises:
        ProblemError: it is missing or something else.
    """
    text = given.replace(" ", "") if isinstance(given, str) else ""
    expected = "expected the rows of two or three weights, as 4096+1024+1024"
    if not _WORDS.fullmatch(text):
        raise ProblemError(f"parts is {'missing' if given is None else repr(given)[:60]}: {expected}")
    if (total := sum(map(int, text.split("+")))) != n:
        raise ProblemError(f"parts is {text}, which is {total} in all, and N is {n}: {expected}, whose sum is N")
    return text


@functools.lru_cache(maxsize=4096)
def parts_of(problem: Problem) -> tuple[int, ...]:
    """How many rows each weight of a problem has."""
    return tuple(map(int, str(problem[PARTS]).split("+")))
