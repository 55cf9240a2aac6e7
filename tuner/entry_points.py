"""Entry points of installed packages, read once for all groups, because reading opens a file of every package."""

from __future__ import annotations

import functools
from importlib import metadata
from importlib.metadata import Distribution, EntryPoint

_PREFIX = "[tuner."
"""How our groups begin in a package's file: what lies in others need not be parsed."""


@functools.cache
def _all() -> tuple[EntryPoint, ...]:
    """The entry points of packages that name a group of ours, sorted by name and value, without duplicates."""
    named = (each for each in metadata.distributions() if _PREFIX in (each.read_text("entry_points.txt") or ""))
    found = (point for each in named for point in _first_of_its_name(each).entry_points)
    return tuple(dict.fromkeys(sorted(found, key=lambda point: (point.name, point.value))))


def _first_of_its_name(package: Distribution) -> Distribution:
    """The package of the same name that comes first on `sys.path`, which is the one that Python imports."""
    try:
        return metadata.distribution(package.metadata["Name"]) if "Name" in package.metadata else package
    except metadata.PackageNotFoundError:  # its folder has another name
        return package


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, sorted by name and value, without duplicates."""
    return tuple(point for point in _all() if point.group == group)


def forget() -> None:
    """Read the installed packages again at the next call."""
    _all.cache_clear()
