"""A bounded cache of what follows from an address alone: encoded descriptors, and how the device reaches memory."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from tuner.bounded import make_room

MOST = 512
"""Addresses that one kernel's launcher keeps, about 150 B each."""
MOST_IN_ALL_CACHES = 65_536
"""Entries of all caches of a process. Where M takes every value there are thousands of plans, each with many layers."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class BoundedCache(dict[_Key, _Value]):
    """Values made on demand; the cache is emptied when it is full, and all caches are when they are full together."""

    def __init__(self, make: Callable[[_Key], _Value], most: int) -> None:
        """Start empty.

        Args:
            make: Returns the value of a key.
            most: The number of entries that this cache may hold.
        """
        super().__init__()
        self._make, self._most = make, most
        _caches[id(self)] = self

    def __missing__(self, key: _Key) -> _Value:
        """Make the value and keep it."""
        made = self._make(key)
        make_room(self, self._most)
        if next(_count) % MOST_IN_ALL_CACHES == 0:
            # `valuerefs` returns a list at once: another thread may add a cache meanwhile.
            for cache in [reference() for reference in _caches.valuerefs()]:
                if cache is not None:
                    cache.clear()
        self[key] = made
        return made


_caches: weakref.WeakValueDictionary[int, BoundedCache[Any, Any]] = weakref.WeakValueDictionary()
_count = itertools.count(1)
"""Counts the values made by all caches."""
