"""What compile children are forked from: a process that has imported this module, and with it what each of them needs.

The one module whose import does something: a fork server runs nothing else. Kernels of others are left to the children
that ask for them; nobody knows what those do when they are imported.
"""

from __future__ import annotations

import torch  # noqa: F401
import triton  # noqa: F401

from tuner.kernel import registry
from tuner.launch import compat

for point in registry.points():
    if point.value.startswith("tuner."):
        point.load()
registry.forget()  # a child looks for itself: its path may be another
compat.triton_key()  # reads all of Triton, hundreds of MB, and is remembered
