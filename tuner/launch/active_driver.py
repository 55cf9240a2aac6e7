"""Triton's active driver, which says what the current device, its stream and its target are."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

from tuner.errors import TunerError
from tuner.launch import compat

_lock = threading.Lock()
_borrowers: list[object] = []
_put: list[Any] = []
"""What makes Triton's driver, and what is in its place, while that is so."""


def prepare() -> None:
    """Make `nvidia_driver.NvidiaDriver` the active driver, if NVIDIA's is what Triton would make active now.

    Which driver is active, if any, is `_active` in Triton 3.6 to 3.9. Without that name Triton's own becomes active.
    """
    if getattr(compat.driver, "_active", compat.driver) is None and (made := _nvidias()) is not None:
        compat.driver.set_active(made)


def active() -> Any:
    """The active driver, see `prepare`."""
    prepare()
    return compat.driver.active


def lend(borrower: object) -> None:
    """Have Triton make the driver of `prepare` when the program first asks for one, until it is taken back.

    Nothing is asked or imported before: which GPUs there are is not to be known before a program forks.
    """
    with _lock:
        own = getattr(compat.driver_module, compat.MAKES_DRIVER, None)
        if not _put and own is not None:
            _put[:] = own, functools.wraps(own)(lambda: (_borrowers and _nvidias()) or own())
            setattr(compat.driver_module, compat.MAKES_DRIVER, _put[1])
        _borrowers.append(borrower)


def take_back(borrower: object) -> None:
    """Undo a `lend`; with the last one Triton's function is its own again, unless another took its place.

    A driver that was made meanwhile stays: it has loaded kernels.
    """
    with _lock:
        if borrower in _borrowers:
            _borrowers.remove(borrower)
        if not _borrowers and _put and getattr(compat.driver_module, compat.MAKES_DRIVER) is _put[1]:
            setattr(compat.driver_module, compat.MAKES_DRIVER, _put[0])
            _put.clear()


def _nvidias() -> Any:
    """The driver to use where Triton would make NVIDIA's; None where it would not.

    None, too, in a program without torch, by which Triton 3.9 can do: its module then says what torch says here.
    """
    found = [name for name, each in compat.backends.items() if each.driver.is_active()]
    chosen = os.environ.get("TRITON_DEFAULT_BACKEND")
    if found != ["nvidia"] or chosen not in (None, "", "nvidia") or "torch" not in sys.modules:
        return None
    try:
        from tuner.launch.nvidia_driver import NvidiaDriver
    except TunerError:  # a Triton that has no such driver
        return None
    return NvidiaDriver()
