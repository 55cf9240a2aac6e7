"""How caches stay bounded where a process may call ever new shapes, keys or addresses."""

from __future__ import annotations

from collections.abc import MutableMapping, MutableSet
from typing import Any


def make_room(cache: MutableMapping[Any, Any] | MutableSet[Any], most: int) -> None:
    """Empty a cache that holds as many entries as it may; call it before one is added.

    All go: to know the oldest, each hit would have to note itself, and what is still in use is soon back. It takes
    plain dicts and sets, because Python reads those faster than a subclass that knows its size.
    """
    if len(cache) >= most:
        cache.clear()
