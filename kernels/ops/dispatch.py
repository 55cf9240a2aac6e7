"""The last step of any op's checked call, which looks up a config and launches it."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import increment_version

from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.kernels.base.activations import activated, saturated
from tuner.kernels.ops import ready
from tuner.kernels.ops.checked_call import CheckedCall
from tuner.launch.plan import Recording
from tuner.lookup import strict
from tuner.lookup.lookup import lookup
from tuner.problem import Problem, dtype

if TYPE_CHECKING:
    from tuner.kernel import Inputs


def launch(operands: Inputs, problem: Problem, torch_device: torch.device) -> Recording:
    """Launch the config that a lookup finds for a problem, on the operands' device and its current stream.

    A config that fails at its first launch is not used again in this process. It is replaced by the lookup's next
    match, then by the default, and then by the default of the next kernel. Where `tuner.strict` holds and no shipped
    binary launches a config, torch's library writes the output.

    Returns:
        The recorded launches; none if torch's library took their place.

    Raises:
        KernelError: no installed kernel serves the problem on this device; or it is strict, and torch's library has no
            such function.
        Exception: No config could be launched; this is the last one's error.
    """
    index = torch_device.index if torch_device.type == "cuda" else None
    device = device_of(index)
    call = CheckedCall(operands, problem, device, index, lookup(problem, device))
    strict.is_on()  # it raises where nobody can say
    # Triton launches on the current device, which may not be the operands'.
    guard = contextlib.nullcontext() if index is None else torch.cuda.device(index)
    with guard:
        launched = ready.launch(call)
        if launched is None:
            # A program whose launches all ship ready never imports it.
            from tuner.kernels.ops import by_kernels

            launched = by_kernels.launch(call)
    # For autograd, which does not see a launch: what it has saved of an output is no longer there.
    increment_version(getattr(operands, "out", ()))
    return launched


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
def device_of(index: int | None) -> Device:
    """The model of a GPU by its CUDA index, or the interpreter for None."""
    return devices.current(index)


@functools.cache
def is_supported(index: int | None) -> bool:
    """Whether kernels are compiled for a GPU, by its CUDA index; the interpreter, None, runs all that it can."""
    device = device_of(index)
    return device.is_interpreter or device.features.supported
