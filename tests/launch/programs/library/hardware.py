"""Asks which device is current as it is imported, as flash-linear-attention does."""

from __future__ import annotations

from triton.runtime import driver

BACKEND = driver.active.get_current_target().backend
