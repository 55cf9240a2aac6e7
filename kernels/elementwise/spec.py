"""What ops that only move memory (`vector_add`, `softmax`, `rms_norm`) share: operands, and what no kernel serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base import interpreted
from tuner.kernels.base.operands import Written
from tuner.problem import Problem

DTYPES = ("float32", "float16", "bfloat16")
MOST_COLUMNS = 32_768
"""The longest rows that lie whole in a program: 1,024 threads with 64 registers hold 32 values each and temporaries."""


@dataclass(frozen=True, eq=False, slots=True)
class Tensors(Written):
    """The operands of an op that only moves memory, which are its `Inputs`.

    Attributes:
        a: the first input, any strides.
        b: the second input, of a's shape, any strides, or `rms_norm`'s weight [N]; None if there is only one.
        out: the output, of a's shape; its elements share no memory. It may be a or b itself.
        problem: what is computed.
        buffer: the allocation that contains `out`, or `out` itself.
        offset: what `rms_norm` adds to its weight. It is compiled in, and no part of the problem.
    """

    a: torch.Tensor
    b: torch.Tensor | None
    out: torch.Tensor
    problem: Problem
    buffer: torch.Tensor
    offset: float = 0.0


def launch_interpreted(inputs: Tensors, config: Config, run: Callable[[Tensors, Config], None]) -> None:
    """Run a kernel under the interpreter, through float32 where the result would otherwise be wrong."""
    # Masked rows have a sum of 0, by which the kernel divides.
    with np.errstate(divide="ignore"):
        interpreted.launch_interpreted(inputs, config, run)


def lacking(problem: Problem, device: Device, layouts: tuple[str, ...], extras: tuple[str, ...] = ()) -> str | None:
    """Why no kernel of an op that only moves memory serves a problem on a device, or None.

    Args:
        problem: a problem of the op.
        device: the device.
        layouts: the layouts that the op supports.
        extras: the names of the extras that its problems have.
    """
    if problem.a_dtype not in DTYPES:
        return f"no {problem.a_dtype}: it takes {', '.join(DTYPES)}"
    if not problem.a_dtype == problem.b_dtype == problem.out_dtype:
        return f"no {problem.dtype_label}: operands and output are of one dtype"
    if problem.layout not in layouts:
        return f"no layout {problem.layout}: expected {' or '.join(layouts)}"
    for name, found, expected in (
        ("epilogue", problem.epilogue, ("none",)),
        ("precision", problem.precision, ("default", "ieee")),
        ("extras", {name: value for name, value in problem.extras if name not in extras}, ({},)),
    ):
        if found not in expected:
            return f"no {name} {found}: leave it out"
    if device.is_interpreter or device.features.supported:
        return None
    return f"no {device.arch}: it is compiled and tested for sm_80 and newer, gfx942, gfx950"
