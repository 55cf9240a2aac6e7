"""Arguments of a plan's launches: made once for a stream and addresses, on which alone they depend, and kept."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

MOST = 512
"""Kept for each step, some 600 B each: the layers of a model share their plans."""
MOST_ALTOGETHER = 65_536
"""Kept by all steps of a process: where M takes every value there are thousands, and each has its layers' addresses."""


class Kept:
    """A step by a C function whose arguments are kept.

    Attributes:
        launch: the C function.
        arguments: its own, by (stream, *addresses).
    """

    __slots__ = ("arguments", "launch")

    def __init__(self, kernel: Any, launch: Callable[..., None], make: Callable[..., tuple[Any, ...]]) -> None:
        self.launch = launch
        self.arguments = Arguments(kernel, make)

    def __call__(self, *called: int) -> None:
        """Launch on a stream with addresses."""
        self.launch(*self.arguments[called])


class Arguments(dict[tuple[int, ...], tuple[Any, ...]]):
    """Those of one step, by (stream, *addresses)."""

    def __init__(self, kernel: Any, make: Callable[..., tuple[Any, ...]]) -> None:
        super().__init__()
        # The kernel itself is held, not its function alone: Triton 3.9 unloads a binary with its CompiledKernel.
        self._kernel = kernel
        self._make = make
        _all[id(self)] = self

    def __missing__(self, called: tuple[int, ...]) -> tuple[Any, ...]:
        """Make them."""
        made = self._make(*called)
        if len(self) >= MOST:
            self.clear()
        if next(_count) % MOST_ALTOGETHER == 0:
            for each in list(_all.values()):
                each.clear()
        self[called] = made
        return made


class AsCalled(dict[tuple[int, ...], tuple[int, ...]]):
    """In their place, of what takes a stream and addresses itself; none is kept."""

    def __missing__(self, called: tuple[int, ...]) -> tuple[int, ...]:
        """The same."""
        return called


_all: weakref.WeakValueDictionary[int, Arguments] = weakref.WeakValueDictionary()
_count = itertools.count(1)
"""Of what was made."""
