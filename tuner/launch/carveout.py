"""How a multiprocessor's memory is divided between the L1 and shared memory while a kernel runs there.

The driver divides it as a kernel asks, and a multiprocessor is divided anew only when nothing runs there: programs of a
kernel without shared memory keep those of one that fills it from starting beside them. Triton has no option for it.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

_PREFERRED_SHARED_MEMORY_CARVEOUT = 9
"""CUDA driver API, CUfunction_attribute."""
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
    set_attribute = _set_attribute()
    if set_attribute is not None:
        # A hint: where it fails the kernels run one after the other.
        set_attribute(ctypes.c_void_p(kernel.function), _PREFERRED_SHARED_MEMORY_CARVEOUT, _ALL)


@functools.cache
def _set_attribute() -> Callable[..., int] | None:
    if torch.version.hip:
        return None
    try:
        function: Callable[..., int] = ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute
    except (OSError, AttributeError):
        return None
    return function
