"""For a problem whose operands are copied along K: the problem that is then computed, and what is copied."""

from __future__ import annotations

import functools

from tuner.hardware.device import Device
from tuner.kernels.base.operands import cannot_align
from tuner.kernels.gemm.padded.problem import cannot_pad, copied_operands, padded_problem
from tuner.kernels.space import tile_resources
from tuner.problem import Problem

_FEWEST_ROWS, _LEAST = 65, 64
"""M from which a copy may pay, with which a range of the formula begins (docs/lookup.md), and N and K."""


@functools.lru_cache(maxsize=4096)
def along_k(problem: Problem) -> Problem:
    """A problem whose operands run along K."""
    return Problem.from_fields({**problem.fields(), "layout": "nt"})


@functools.lru_cache(maxsize=4096)
def computed(problem: Problem) -> Problem:
    """The problem that the inner kernel computes: along K and aligned, each size rounded up to a multiple of a unit."""
    return along_k(padded_problem(problem))


def is_copied(problem: Problem) -> tuple[bool, bool]:
    """Whether A and B are copied: those that do not run along K, or that TMA cannot read."""
    unread = copied_operands(problem, "none")
    return problem.layout[0] != "n" or "a" in unread, problem.layout[1] != "t" or "b" in unread


def refused(problem: Problem, device: Device) -> str | None:
    """Why no operand need be copied along K, or copies cannot pay; None if they can."""
    if not device.features.wgmma:
        return "it is for wgmma, which Hopper alone has"
    if not tile_resources.uses_tensor_cores(problem) or tile_resources.suits_wgmma(problem):
        return "it is for TF32 and operands of 8 bits that do not run along K"
    if problem.scaling == "block":
        return "scales of blocks"
    if problem.precision == "tf32x3":
        return "tf32x3: operands pass through registers anyway"
    if problem.m < _FEWEST_ROWS or min(problem.n, problem.k) < _LEAST:
        sizes = f"M, N and K are {problem.m}, {problem.n} and {problem.k}"
        return f"{sizes}: copies pay from {_FEWEST_ROWS} rows and from {_LEAST} columns and elements along K on"
    return cannot_align(problem) or cannot_pad(problem)
