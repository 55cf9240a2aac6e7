"""What reading a table or a database finds wrong: lookups log it as one line, `tuner verify` reports its parts."""

from __future__ import annotations

from typing import NamedTuple

from tuner.lookup.row import reason


class Fault(NamedTuple):
    """Something wrong with a file, or with a row or device of it that was left out.

    Attributes:
        check: the check of `tuner verify` that reports it: "digest", "row", "range" or "duplicate".
        where: "row 3", "family 2", "winner 7" or "device 2", whichever was left out; "" for the whole file, which is
            still used.
        found, expected: in words.
        advice: what to do about it.
    """

    check: str
    where: str
    found: str
    expected: str
    advice: str

    def __str__(self) -> str:
        return f"{self.where} left out: {self.found}" if self.where else self.found


def edited() -> Fault:
    """The fault of a table whose digest does not fit its content."""
    found = "its digest is not that of its rows: it was edited after `tuner export` wrote it"
    return Fault("digest", "", found, "the SHA-256 of its rows", "export it again with `tuner export`")


def unreadable(where: str, error: Exception) -> Fault:
    """The fault of a row or device that cannot be read."""
    return Fault("row", where, reason(error), "a row that can be read", "export it again")


def duplicate(where: str, problem: object) -> Fault:
    """The fault of a row whose problem an earlier row has."""
    advice = "delete one of the two, and export again"
    return Fault("duplicate", where, f"{problem} is there already", "one row a problem", advice)


def unreadable_family(where: str, error: Exception) -> Fault:
    """The fault of a family whose ranges cannot be."""
    expected = "ranges of M, each of which begins where the one before ends and holds the M of its row"
    return Fault("range", where, reason(error), expected, "export it again")
