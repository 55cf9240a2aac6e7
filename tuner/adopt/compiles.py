"""Where a jit function compiles, and what ships for one of an adopted library.

`JITFunction.run` asks its own cache for a key, and compiles where that has none. Who adopts a library stands around the
compile, so a launch of a known key runs no line of this package.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tuner.adopt.compiled_files import library_of, place_of
from tuner.adopt.kernel import op_of
from tuner.errors import DeviceError
from tuner.hardware import device as devices
from tuner.launch import binaries, compat
from tuner.launch.binaries import ShippedBinaries

Around = Callable[[Any, Callable[[], Any]], Any]
"""Given a `JITFunction`, and what compiles it for one key, returns what that returns."""
SHIP = "tuner capture --adopt {library} --out calls -- COMMAND, then tuner export DIR --with-kernels --captured calls"
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_arounds: list[Around] = []
_put: list[Any] = []
"""Triton's method and the one in its place, while there is one."""


def surround(around: Around) -> None:
    """Call a function around each compile of a `JITFunction` from here on."""
    with _lock:
        own = getattr(compat.JITFunction, compat.COMPILES, None)
        if not _put and own is not None:
            _put[:] = own, _surrounded(own)
            setattr(compat.JITFunction, compat.COMPILES, _put[1])
        _arounds.append(around)


def leave(around: Around) -> None:
    """Take a function back; with the last one, Triton's method is its own again, unless another took its place."""
    with _lock:
        if around in _arounds:
            _arounds.remove(around)
        if not _arounds and _put and getattr(compat.JITFunction, compat.COMPILES) is _put[1]:
            setattr(compat.JITFunction, compat.COMPILES, _put[0])
            _put.clear()


def _surrounded(own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def do_compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        compiles = functools.partial(own, self, *args, **kwargs)
        for around in tuple(_arounds):
            compiles = functools.partial(around, self, compiles)
        return compiles()

    return do_compile


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds what ships under a name for the current device.

    Attributes:
        name: of a library, or of the op of a kernel's table.
        advice: what to type where no binary serves a call of a strict process.
    """

    name: str
    advice: str = ""
    is_for_triton: ClassVar = True

    def __call__(self) -> ShippedBinaries | None:
        """Return what ships; None where nothing does, or where a kernel is compiled for a GPU that is not here."""
        try:
            return binaries.shipped_binaries(self.name, devices.current().slug)
        except DeviceError:
            return None


def finders_of(function: Any) -> tuple[Finder, Finder]:
    """Return what finds the binaries of a jit function: those of its library, and those of its own table."""
    library = library_of(place_of(function))
    advice = f"; nothing is compiled (strict); to ship one: {SHIP.format(library=library)}"
    return Finder(library, advice), Finder(op_of(function))


def report_other_source(function: Any) -> None:
    """Log that all binaries of a jit function which its library ships are of another source."""
    place = place_of(function)
    shipped = finders_of(function)[0]()
    sources = set() if shipped is None else shipped.sources_of(place)
    if sources and function.cache_key not in sources:
        _warn_of_other_source(place)


@functools.cache
def _warn_of_other_source(place: str) -> None:
    _log.warning(
        "%s has binaries of another source, which are not used; to ship those of this one: %s",
        place,
        SHIP.format(library=library_of(place)),
    )
