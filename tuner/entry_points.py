"""Entry points of installed packages, of all groups read once: each reading opens a file of every package there is."""

from __future__ import annotations

import functools
import importlib.metadata
from importlib.metadata import EntryPoint
from typing import Any


@functools.cache
def _all() -> Any:  # of another class from Python 3.12 on
    return importlib.metadata.entry_points()


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, by name and value; one that is installed twice is one."""
    found = sorted(_all().select(group=group), key=lambda point: (point.name, point.value))
    return tuple(dict.fromkeys(found))


def forget() -> None:
    """Have the installed packages read anew."""
    _all.cache_clear()
