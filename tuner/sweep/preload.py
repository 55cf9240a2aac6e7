"""Imports what every compile child needs; the children are forked from a process that has imported this module.

This is the only module whose import has side effects, because a fork server runs nothing else. Third parties' kernels
are left to the children that need them, since nobody knows what importing those does.
"""

from __future__ import annotations

import torch  # noqa: F401
import triton  # noqa: F401

from tuner.kernel import registry
from tuner.launch import compat

for point in registry.points():
    if point.value.startswith("tuner."):
        point.load()
registry.forget()  # a child looks again, since its path may differ
compat.triton_key()  # reads all of Triton, hundreds of MB, and caches the result
