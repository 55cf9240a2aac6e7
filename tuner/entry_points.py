"""Entry points of installed packages, read once for all groups, because reading opens a file of every package."""

from __future__ import annotations

import functools
from importlib import metadata
from importlib.metadata import EntryPoint

_PREFIX = "[tuner."
"""How our groups begin in a package's file: what lies in others need not be parsed."""


@functools.cache
def _all() -> tuple[EntryPoint, ...]:
    """The entry points of packages that name a group of ours, sorted by name and value, without duplicates.

    Of two packages of one name the first on `sys.path` counts, as for `importlib.metadata.entry_points`.
    """
    packages = {each.metadata["Name"] for each in metadata.distributions() if _PREFIX in _text_of(each)}
    found = (point for name in filter(None, packages) for point in metadata.distribution(name).entry_points)
    return tuple(dict.fromkeys(sorted(found, key=lambda point: (point.name, point.value))))


def _text_of(package: metadata.Distribution) -> str:
    return package.read_text("entry_points.txt") or ""


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, sorted by name and value, without duplicates."""
    return tuple(point for point in _all() if point.group == group)


def forget() -> None:
    """Read the installed packages again at the next call."""
    _all.cache_clear()
