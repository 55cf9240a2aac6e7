"""Arguments of a plan's launches: made once for a stream and addresses, on which alone they depend, and kept."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

MOST = 512
"""Kept for each step, some 600 B each: the layers of a model share their plans."""
MOST_ALTOGETHER = 65_536
"""Kept by all memos of a process: where M takes every value there are thousands, and each has its layers' addresses."""

_Key = TypeVar("_Key")
_Made = TypeVar("_Made")


class Memo(dict[_Key, _Made]):
    """What is made once for a key, bounded for itself and together with all others of the process."""

    def __init__(self, make: Callable[[_Key], _Made], most: int) -> None:
        """Begin empty.

        Args:
            make: gives what a key stands for.
            most: kept here; one more, and all begins anew.
        """
        super().__init__()
        self._make, self._most = make, most
        _all[id(self)] = self

    def __missing__(self, key: _Key) -> _Made:
        """Make it."""
        made = self._make(key)
        if len(self) >= self._most:
            self.clear()
        if next(_count) % MOST_ALTOGETHER == 0:
            # `valuerefs` is a list made at once: another thread may make a memo meanwhile.
            for memo in [reference() for reference in _all.valuerefs()]:
                if memo is not None:
                    memo.clear()
        self[key] = made
        return made


class Kept:
    """A step by a C function whose arguments are kept.

    Attributes:
        launch: the C function.
        arguments: its own, by (stream, *addresses).
    """

    __slots__ = ("arguments", "launch")

    def __init__(self, kernel: Any, launch: Callable[..., None], make: Callable[..., tuple[Any, ...]]) -> None:
        self.launch = launch

        # The kernel itself is held, not its function alone: Triton 3.9 unloads a binary with its CompiledKernel.
        def made(called: tuple[int, ...], _held: Any = kernel) -> tuple[Any, ...]:
            return make(*called)

        self.arguments = Memo(made, MOST)

    def __call__(self, *called: int) -> None:
        """Launch on a stream with addresses."""
        self.launch(*self.arguments[called])


class AsCalled(dict[tuple[int, ...], tuple[int, ...]]):
    """In their place, of what takes a stream and addresses itself; none is kept."""

    def __missing__(self, called: tuple[int, ...]) -> tuple[int, ...]:
        """The same."""
        return called


_all: weakref.WeakValueDictionary[int, Memo[Any, Any]] = weakref.WeakValueDictionary()
_count = itertools.count(1)
"""Of what was made."""
