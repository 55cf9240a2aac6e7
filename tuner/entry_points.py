"""Entry points of installed packages, read once for all groups, because reading opens a file of every package."""

from __future__ import annotations

import functools
import importlib.metadata
from importlib.metadata import EntryPoint
from typing import Any


@functools.cache
def _all() -> Any:  # its class differs from Python 3.12 on
    return importlib.metadata.entry_points()


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, sorted by name and value, without duplicates."""
    found = sorted(_all().select(group=group), key=lambda point: (point.name, point.value))
    return tuple(dict.fromkeys(found))


def forget() -> None:
    """Read the installed packages again at the next call."""
    _all.cache_clear()
