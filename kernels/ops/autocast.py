"""torch.autocast, which an op follows as torch's own op does: operands are cast, then the op runs with autocast off.

While autocast is on for a device, the guards of a call's plan refuse that device's tensors (`launch/call_cache.py`), so
that calls outside of autocast need not ask whether it is on.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch

_DEVICES = ("cuda", "cpu")
"""The devices on which the ops run; torch knows autocast of others, and refuses the question for some."""
HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, *HALVES)


def is_on(operand: object) -> bool:
    """Whether autocast is on for the device of an op's first operand."""
    kind = operand.device.type if isinstance(operand, torch.Tensor) else None
    return kind in _DEVICES and bool(torch.is_autocast_enabled(kind))


def off(operand: torch.Tensor) -> AbstractContextManager[object]:
    """Turn autocast off for an operand's device inside of the block, if it is on."""
    return torch.autocast(operand.device.type, enabled=False) if is_on(operand) else contextlib.nullcontext()


def lowered(first: torch.Tensor, *others: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """The operands of a matrix product in autocast's dtype; unchanged where one is no float of 16 or 32 bits."""
    given = (first, *others)
    if any(isinstance(each, torch.Tensor) and each.dtype not in _FLOATS for each in given):
        return given
    dtype = torch.get_autocast_dtype(first.device.type)
    return tuple(each.to(dtype) if isinstance(each, torch.Tensor) else each for each in given)


def differ(x: torch.Tensor, y: object) -> bool:
    """Whether two operands are floats of 16 or 32 bits of different dtypes."""
    return isinstance(y, torch.Tensor) and x.dtype in _FLOATS and y.dtype in _FLOATS and x.dtype != y.dtype


def widened(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two operands in the dtype to which torch promotes them."""
    dtype = torch.promote_types(x.dtype, y.dtype)
    return x.to(dtype), y.to(dtype)
