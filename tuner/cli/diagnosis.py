"""A finding of `tuner doctor`: what is there, whether that is wrong, and what to type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """How serious a finding is."""

    OK = "ok"
    NOTE = "note"
    """Works, but for something that may be missed."""
    WRONG = "wrong"
    """Stops tuning or a lookup."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: what was looked at.
        status: how serious it is.
        found: what is there.
        advice: what to type, "" where nothing need be done.
    """

    topic: str
    status: Status
    found: str
    advice: str = ""
