"""The lines of each op's precedence table, which decides the kernel that gives the default config."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.problem import Problem

LAST = -1
"""The precedence of a kernel for problems that match none of its lines."""


class Line(NamedTuple):
    """One line of a table.

    Attributes:
        precedence: `KernelSpec.precedence` for problems that match the line. Among kernels with the same precedence,
            the one whose config is estimated to be faster comes first.
        kernel: the kernel's name.
        when: whether a problem on a device matches the line.
    """

    precedence: int
    kernel: str
    when: Callable[[Problem, Device], bool]


def of(table: Sequence[Line], kernel: str, problem: Problem, device: Device) -> int:
    """`KernelSpec.precedence` of a kernel: that of its first matching line, else `LAST`, or 0 if it has no lines."""
    lines = [line for line in table if line.kernel == kernel]
    return next((line.precedence for line in lines if line.when(problem, device)), LAST if lines else 0)


def always(problem: Problem, device: Device) -> bool:  # noqa: ARG001
    """Match every problem that the kernel serves."""
    return True


def on_hardware(problem: Problem, device: Device) -> bool:  # noqa: ARG001
    """Match every problem except on the interpreter, where kernels that load through pointers come first."""
    return not device.is_interpreter
