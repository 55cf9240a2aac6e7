"""What a call of any op ends with: a config looked up, and its launch where the operands are."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from triton import knobs
from triton.errors import TritonError

from tuner.errors import KernelError
from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.base.epilogue import activated, saturated
from tuner.launch import binaries
from tuner.launch.failure import is_no_fault
from tuner.launch.launch import Launch
from tuner.launch.plan import Recording, recorded
from tuner.lookup.lookup import counter, drop, lookup
from tuner.problem import Problem, dtype

FAILURES = (TritonError, RuntimeError, AssertionError, ValueError, KeyError)
"""What Triton raises where a config cannot be compiled or launched: its own errors, those of MLIR and of the driver."""
_launched: set[tuple[Problem, str, Config]] = set()
_MOST_LAUNCHED = 65_536


def launch(operands: Any, problem: Problem, device: torch.device) -> Recording:
    """Launch what a lookup finds for a problem on the operands' device and its current stream.

    A config that fails the first time is used no more in this process: another one serves, at last the default, and
    in its place that of the next kernel.

    Returns:
        What was launched.

    Raises:
        KernelError: no installed kernel serves the problem on this device.
        Exception: where none can be launched, what the last one raised.
    """
    index = device.index if device.type == "cuda" else None
    model = _device(index)
    match = lookup(problem, model)
    # Triton launches on the current device, which may be another one than the operands'.
    guard = contextlib.nullcontext() if index is None else torch.cuda.device(index)
    with guard, recorded(_shipped(problem.op, model, index)) as seen:
        while True:
            try:
                registry.find(problem.op, match.kernel).launch(operands, match.config)
            except FAILURES as e:
                if (problem, model.slug, match.config) in _launched or is_no_fault(e):
                    raise
                seen.forget()
                reason = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"[:300]
                try:
                    match = drop(problem, model, match, reason)
                except KernelError:
                    raise e from None
            else:
                break
    seen.count = counter(problem, model)
    if len(_launched) >= _MOST_LAUNCHED:
        _launched.clear()
    _launched.add((problem, model.slug, match.config))
    return seen


def _shipped(op: str, model: Device, index: int | None) -> Callable[[Launch], Any] | None:
    """What finds the compiled kernel that was shipped for a launch."""
    if model.is_interpreter or knobs.runtime.debug or knobs.compilation.instrumentation_mode:
        return None
    shipped = binaries.shipped_binaries(op, model.slug)
    if shipped is None:
        return None
    return lambda launch: shipped.kernel(launch.key, launch.function, index)


def epilogue_of(*, has_bias: bool, activation: str) -> str:
    """A problem's name for what follows the sums."""
    parts = [*(["bias"] if has_bias else []), *([activation] if activation != "none" else [])]
    return "+".join(parts) or "none"


def fill_without_products(out: torch.Tensor, bias: torch.Tensor | None, activation: str) -> None:
    """Write the result of sums over no products: activation(bias), or of 0; `bias` broadcasts to `out`."""
    row = torch.zeros(1, device=out.device) if bias is None else bias.float()
    out.copy_(saturated(activated(row, activation), dtype.name_of(out.dtype)).expand(out.shape))


def flattened(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """The tensor as a matrix of so many rows: a view where torch can make one, else new memory like it."""
    try:
        return tensor.view(rows, tensor.shape[-1])
    except RuntimeError:
        return torch.empty(rows, tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)


@functools.cache
def _device(index: int | None) -> Device:
    return devices.current(index)
