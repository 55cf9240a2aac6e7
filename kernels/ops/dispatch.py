"""The last step of any op's checked call, which looks up a config and launches the kernel."""

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
"""What is raised if a config cannot be compiled or launched, by Triton itself, MLIR or the driver."""
_launched: set[tuple[Problem, str, Config]] = set()
_MOST_LAUNCHED = 65_536


def launch(operands: Any, problem: Problem, device: torch.device) -> Recording:
    """Launch the config that a lookup finds for a problem, on the operands' device and its current stream.

    A config that fails at its first launch is not used again in this process. It is replaced by the lookup's next
    match, then by the default, and then by the default of the next kernel.

    Returns:
        The recorded launches.

    Raises:
        KernelError: no installed kernel serves the problem on this device.
        Exception: No config could be launched; this is the last one's error.
    """
    index = device.index if device.type == "cuda" else None
    model = _device(index)
    match = lookup(problem, model)
    # Triton launches on the current device, which may not be the operands'.
    guard = contextlib.nullcontext() if index is None else torch.cuda.device(index)
    with guard, recorded(_shipped(problem.op, model, index)) as recording:
        while True:
            try:
                registry.find(problem.op, match.kernel).launch(operands, match.config)
            except FAILURES as e:
                if (problem, model.slug, match.config) in _launched or is_no_fault(e):
                    raise
                recording.forget()
                reason = f"{type(e).__name__}: {(str(e).splitlines() or [''])[0]}"[:300]
                try:
                    match = drop(problem, model, match, reason)
                except KernelError:
                    raise e from None
            else:
                break
    recording.count = counter(problem, model)
    if len(_launched) >= _MOST_LAUNCHED:
        _launched.clear()
    _launched.add((problem, model.slug, match.config))
    return recording


def _shipped(op: str, model: Device, index: int | None) -> Callable[[Launch], Any] | None:
    """The function that finds a launch's shipped kernel, or None if no kernels are shipped."""
    if model.is_interpreter or knobs.runtime.debug or knobs.compilation.instrumentation_mode:
        return None
    shipped = binaries.shipped_binaries(op, model.slug)
    if shipped is None:
        return None
    return lambda launch: shipped.kernel(launch.key, launch.function, index)


def epilogue_of(*, has_bias: bool, activation: str) -> str:
    """The name of an epilogue in a problem."""
    parts = [*(["bias"] if has_bias else []), *([activation] if activation != "none" else [])]
    return "+".join(parts) or "none"


def fill_without_products(out: torch.Tensor, bias: torch.Tensor | None, activation: str) -> None:
    """Write the result for K = 0, which is activation(bias); `bias` broadcasts to `out`."""
    row = torch.zeros(1, device=out.device) if bias is None else bias.float()
    out.copy_(saturated(activated(row, activation), dtype.name_of(out.dtype)).expand(out.shape))


def flattened(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """The tensor as a matrix with `rows` rows: a view if that is possible, otherwise new, uninitialized memory."""
    try:
        return tensor.view(rows, tensor.shape[-1])
    except RuntimeError:
        return torch.empty(rows, tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)


@functools.cache
def _device(index: int | None) -> Device:
    return devices.current(index)
