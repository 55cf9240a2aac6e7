"""A launch that failed: what the error says of its config, and what it says of the device or the call alone."""

from __future__ import annotations

from tuner.errors import TunerError

_DRIVER = "Triton Error ["
"""How what the driver says begins: Triton raises all of it as RuntimeError."""
_NOT_OF_A_CONFIG = ("out of memory", "captur", "illegal memory access", "launch failure", "context is destroyed")
"""In what cuGetErrorString and hipGetErrorString say: no memory left, a graph's capture, a context that is lost."""


def is_no_fault(error: Exception) -> bool:
    """Whether an error says nothing of the config: wrong operands, no memory left, a capture, a lost context."""
    import torch

    lost: tuple[type[Exception], ...] = (TunerError, torch.OutOfMemoryError)
    lost += (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()
    said = str(error)
    return isinstance(error, lost) or (said.startswith(_DRIVER) and any(each in said for each in _NOT_OF_A_CONFIG))
