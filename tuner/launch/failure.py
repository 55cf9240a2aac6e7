"""Tells failures of a config from failures of the device or of the call."""

from __future__ import annotations

import sys

from tuner.errors import TunerError
from tuner.launch import compat

_DRIVER = "Triton Error ["
"""The beginning of the driver's messages, which Triton raises as RuntimeError."""
UNREADABLE = (OSError, AttributeError, IndexError, TypeError)
"""What files raise beside `failures` that are not what an export wrote."""
_NOT_OF_A_CONFIG = ("out of memory", "captur", "illegal memory access", "launch failure", "context is destroyed")
"""Parts of messages of cuGetErrorString and hipGetErrorString: no memory, a graph's capture, a lost context."""


def failures(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """What is raised if a config cannot be compiled or launched, by Triton itself, MLIR or the driver; and more."""
    by_triton = (compat.TritonError,) if "triton.errors" in sys.modules else ()
    return (*more, *by_triton, RuntimeError, AssertionError, ValueError, KeyError)


def is_no_fault(error: Exception) -> bool:
    """Whether an error is not the config's fault: wrong operands, no memory, a capture, a lost context."""
    import torch

    lost: tuple[type[Exception], ...] = (TunerError, torch.OutOfMemoryError)
    lost += (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()
    said = str(error)
    return isinstance(error, lost) or (said.startswith(_DRIVER) and any(each in said for each in _NOT_OF_A_CONFIG))
