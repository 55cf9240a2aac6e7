"""What `tuner verify` found in tables and databases: how bad, where, what was expected, what to type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tuner.problem import Problem


class Level(str, Enum):
    """How bad a finding is."""

    ERROR = "error"
    """A lookup refuses it, or never sees it."""
    WARNING = "warning"
    """A lookup uses it, and somebody should look at it."""
    NOTE = "note"
    """Fine, and worth knowing."""

    def __str__(self) -> str:
        return self.value


LEVELS = tuple(Level)
"""All levels, the worst first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `tuner verify` found.

    Attributes:
        level: how bad it is.
        check: the name of the check that found it (docs/tables.md lists them).
        place: the file, database or package.
        device: the slug that it is about, "" where that is not known.
        row: the problem in words, "row 3" of one that cannot be read, "" for the whole.
        found, expected: in words.
        advice: what to type or do; "" where nothing need be done.
        problem: the row's, None where it has none.
    """

    level: Level
    check: str
    place: str
    device: str
    row: str
    found: str
    expected: str
    advice: str = ""
    problem: Problem | None = None
