"""Which kernel's formula answers first where nobody tuned: what the table of each op is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.problem import Problem

LAST = -1
"""The precedence of a kernel for problems that none of its lines is for."""


class Line(NamedTuple):
    """One line of a table.

    Attributes:
        precedence: `KernelSpec.precedence` of the problems that the line is for. Of kernels with the same precedence,
            the one whose config is estimated to be faster comes first.
        kernel: the kernel's name.
        when: which problems, on which device.
    """

    precedence: int
    kernel: str
    when: Callable[[Problem, Device], bool]


def of(table: Sequence[Line], kernel: str, problem: Problem, device: Device) -> int:
    """`KernelSpec.precedence` of a kernel: that of its first line which applies, else `LAST`; 0 without any line."""
    lines = [line for line in table if line.kernel == kernel]
    return next((line.precedence for line in lines if line.when(problem, device)), LAST if lines else 0)


def always(problem: Problem, device: Device) -> bool:  # noqa: ARG001
    """The line is for every problem that the kernel serves."""
    return True


def on_hardware(problem: Problem, device: Device) -> bool:  # noqa: ARG001
    """The line is for every problem but not for the interpreter, where kernels of pointers come first."""
    return not device.is_interpreter
