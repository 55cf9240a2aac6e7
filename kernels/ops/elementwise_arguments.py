"""Checks of the arguments of the ops that only move memory, in the manner of `arguments`."""

from __future__ import annotations

import torch

from tuner.errors import InputError
from tuner.kernels.base.sharing import share_memory
from tuner.kernels.elementwise.spec import DTYPES
from tuner.kernels.ops.arguments import check_device, check_memory, check_tensors, check_written, in_memory, shown
from tuner.problem import dtype


def check_input(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Check an operand, and return it with its values in memory."""
    check_tensors(**{name: tensor})
    check_memory(**{name: tensor})
    check_dtype(name, tensor)
    check_device(name, tensor)
    (read,) = in_memory(**{name: tensor})
    return read


def check_dtype(name: str, tensor: torch.Tensor) -> None:
    """Check that an operand is a float of 16 or 32 bits."""
    if (found := dtype.name_of(tensor.dtype)) not in DTYPES:
        raise InputError(f"{name} is {found}: expected one of {', '.join(DTYPES)}; convert it with {name}.to(...)")


def check_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Check an operand x that has rows, and return it with its values in memory."""
    x = check_input("x", tensor)
    check_dimensions(x)
    return x


def check_dimensions(x: torch.Tensor) -> None:
    """Check that x has rows."""
    if x.dim() == 0:
        raise InputError("x has shape []: expected [..., N]; use x.reshape(1)")


def check_alike(x: torch.Tensor, y: torch.Tensor, name: str = "y") -> None:
    """Check that x and another operand, y unless it is named, have one dtype and are on one device."""
    if x.dtype != y.dtype:
        raise InputError(f"x is {dtype.name_of(x.dtype)} and {name} {dtype.name_of(y.dtype)}: use {name}.to(x.dtype)")
    if x.device != y.device:
        raise InputError(f"x is on {x.device} and {name} on {y.device}: expected one device; use {name}.to(x.device)")


def check_out(out: torch.Tensor, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Check that `out` is like x and shares memory with no operand, unless it is that operand; return it."""
    check_tensors(out=out)
    check_memory(out=out)
    if out.shape != x.shape:
        raise InputError(f"out has shape {shown(out)}: expected {shown(x)}")
    if out.dtype != x.dtype:
        raise InputError(f"out is {dtype.name_of(out.dtype)}: expected {dtype.name_of(x.dtype)}, as x is")
    if out.device != x.device:
        raise InputError(f"out is on {out.device} and x on {x.device}: expected one device; use torch.empty_like(x)")
    check_written(out)
    if any(share_memory(out, operand) and not _same(out, operand) for operand in (x, *others)):
        raise InputError("out shares memory with an operand and is not the same view: give that very operand as out=")
    return out


def _same(out: torch.Tensor, operand: torch.Tensor) -> bool:
    """Whether each element lies where the operand's does, so that it is read before it is written."""
    return bool(out.data_ptr() == operand.data_ptr() and out.stride() == operand.stride())
