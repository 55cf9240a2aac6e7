"""A call whose arguments were checked, with all that decides what is launched for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.hardware.device import Device
from tuner.lookup.decision import Match
from tuner.problem import Problem

if TYPE_CHECKING:
    from tuner.kernel import Inputs


@dataclass(frozen=True, eq=False, slots=True)
class CheckedCall:
    """What `dispatch.launch` hands to whatever launches a call.

    Attributes:
        operands: The tensors, as the op's kernels take them, such as `kernels.base.operands.Operands`.
        problem: What is computed.
        device: The model of the GPU, or the interpreter.
        index: The GPU's CUDA index; None under the interpreter.
        match: What the lookup answered for the problem.
    """

    operands: Inputs
    problem: Problem
    device: Device
    index: int | None
    match: Match
