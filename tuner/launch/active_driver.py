"""Triton's active driver, which says what the current device, its stream and its target are."""

from __future__ import annotations

import os
from typing import Any

from tuner.launch import compat


def prepare() -> None:
    """Make `nvidia_driver.NvidiaDriver` the active driver, if NVIDIA's is what Triton would make active now.

    Which driver is active, if any, is `_active` in Triton 3.6 to 3.9. Without that name Triton's own becomes active.
    """
    if getattr(compat.driver, "_active", compat.driver) is not None:
        return
    found = [name for name, each in compat.backends.items() if each.driver.is_active()]
    if found == ["nvidia"] and os.environ.get("TRITON_DEFAULT_BACKEND") in (None, "", "nvidia"):
        from tuner.launch.nvidia_driver import NvidiaDriver

        compat.driver.set_active(NvidiaDriver())


def active() -> Any:
    """The active driver, see `prepare`."""
    prepare()
    return compat.driver.active
