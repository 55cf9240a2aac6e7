"""What a call of any op ends with: a config looked up, and its launch where the operands are."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch

from tuner import device as devices
from tuner import dtype as dtypes
from tuner import registry
from tuner.device import Device
from tuner.kernels.epilogue import activated, saturated
from tuner.problem import Problem
from tuner.runtime.lookup import lookup


def launch(operands: Any, problem: Problem, device: torch.device) -> None:
    """Launch what a lookup finds for a problem on the operands' device and its current stream.

    Raises:
        KernelError: no installed kernel serves the problem on this device.
    """
    index = device.index if device.type == "cuda" else None
    match = lookup(problem, _device(index))
    spec = registry.find(problem.op, match.kernel)
    # Triton launches on the current device, which may be another one than the operands'.
    guard = contextlib.nullcontext() if index is None else torch.cuda.device(index)
    with guard:
        spec.launch(operands, match.config)


def epilogue_of(*, has_bias: bool, activation: str) -> str:
    """A problem's name for what follows the sums."""
    parts = [*(["bias"] if has_bias else []), *([activation] if activation != "none" else [])]
    return "+".join(parts) or "none"


def fill_without_products(out: torch.Tensor, bias: torch.Tensor | None, activation: str) -> None:
    """Write the result of sums over no products: activation(bias), or of 0; `bias` broadcasts to `out`."""
    row = torch.zeros(1, device=out.device) if bias is None else bias.float()
    out.copy_(saturated(activated(row, activation), dtypes.name_of(out.dtype)).expand(out.shape))


@functools.cache
def _device(index: int | None) -> Device:
    return devices.current(index)
