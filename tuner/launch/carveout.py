"""How a multiprocessor's memory is divided between the L1 and shared memory while a kernel runs there.

The driver divides it as a kernel asks, and a multiprocessor is divided anew only when nothing runs there: programs of a
kernel without shared memory keep those of one that fills it from starting beside them. Triton has no option for it.
"""

from __future__ import annotations

import weakref
from typing import Any

from tuner.launch import cuda

_ALL = 100
"""Per cent: all of the memory that can be shared memory."""
_asked: weakref.WeakSet[Any] = weakref.WeakSet()


def ask_for_shared(kernel: Any) -> None:
    """Let multiprocessors give a kernel all shared memory from its next launch on.

    Args:
        kernel: a CompiledKernel that has been launched; None, of the interpreter, is passed over.
    """
    if kernel is None or kernel in _asked:
        return
    _asked.add(kernel)
    if kernel.metadata.target.backend == "cuda":
        cuda.prefer_shared(kernel.function, _ALL)  # where it fails the kernels run one after the other
