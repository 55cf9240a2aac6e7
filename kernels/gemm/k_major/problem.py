"""For a problem whose operands are copied along K: the problem that is then computed, and what is copied."""

from __future__ import annotations

import functools

from tuner.hardware.device import Device
from tuner.kernels.base.operands import cannot_align
from tuner.kernels.cost.tile import memory_bytes_per_us
from tuner.kernels.gemm.padded.problem import cannot_pad, copied_operands, padded_problem
from tuner.kernels.space import tile_resources
from tuner.problem import Problem, dtype

_FEWEST_ROWS, _LEAST = 65, 64
"""M from which a copy may pay, with which a range of the formula begins (docs/lookup.md), and N and K."""
FROM_REGISTERS = "warp_specialized"
"""The inner kernel that reads an operand of 32 bits from registers where it does not run along K."""
_TILE, _LONG_K = 128, 2048
"""Rows and columns of the tiles of which there must be few, and K, for sums of 32 bits to be split."""


_COPY_US, _COPY_SHARE = 1.0, 0.85
"""Launch and tail of a copy, as of `padded`, and its share of the memory's bandwidth (`copy._TILES`)."""


@functools.lru_cache(maxsize=4096)
def along_k(problem: Problem, copied: tuple[bool, bool]) -> Problem:
    """A problem whose copied operands run along K, A and B."""
    a, b = ("n" if copied[0] else problem.layout[0]), ("t" if copied[1] else problem.layout[1])
    return Problem.from_fields({**problem.fields(), "layout": a + b})


@functools.lru_cache(maxsize=4096)
def computed(inner: str, problem: Problem) -> Problem:
    """The problem that an inner kernel computes: aligned, each size rounded up to a multiple of a unit."""
    return along_k(padded_problem(problem), is_copied(inner, problem))


def is_copied(inner: str, problem: Problem) -> tuple[bool, bool]:
    """Whether A and B are copied for an inner kernel: what TMA cannot read, and what does not run along K.

    In `warp_specialized` registers can feed one operand of 32 bits that does not run along K. Of two the smaller one is
    copied.
    """
    unread, along = copied_operands(problem, "none"), (problem.layout[0] == "n", problem.layout[1] == "t")
    a, b = "a" in unread, "b" in unread
    if inner != FROM_REGISTERS or dtype.ITEMSIZE[problem.a_dtype] == 1:
        return a or not along[0], b or not along[1]
    if a or b or any(along):
        return a, b
    return problem.m < problem.n, problem.m >= problem.n


def copy_us(nbytes: float, device: Device) -> float:
    """How long it takes to copy so many bytes along K, microseconds."""
    return _COPY_US + 2 * nbytes / (_COPY_SHARE * memory_bytes_per_us(device))


def refused_inner(inner: str, problem: Problem, device: Device) -> str | None:
    """Why copies for an inner kernel cannot pay for a problem that is not `refused`, or None."""
    if not any(is_copied(inner, problem)):
        return f"one operand runs along K, `{inner}` reads the other one as it is stored"
    if dtype.ITEMSIZE[problem.a_dtype] == 1 or inner == FROM_REGISTERS or all(is_copied(FROM_REGISTERS, problem)):
        return None
    tiles = -(-problem.m // _TILE) * -(-problem.n // _TILE)
    if inner == "split_k" and 2 * tiles <= device.sm_count and problem.k >= _LONG_K:
        return None
    return f"`{FROM_REGISTERS}` reads one operand as it is stored, and no sum need be split"


def refused(problem: Problem, device: Device) -> str | None:
    """Why copies are for other operands or sizes whatever the inner kernel is, or None; see `refused_inner`."""
    if not device.features.wgmma:
        return "it is for wgmma, which Hopper alone has"
    if not tile_resources.uses_tensor_cores(problem) or tile_resources.suits_wgmma(problem):
        return "it is for TF32 and operands of 8 bits that do not run along K"
    if problem.scaling == "block":
        return "block scales"
    if problem.precision == "tf32x3":
        return "tf32x3: operands pass through registers anyway"
    if problem.m < _FEWEST_ROWS or min(problem.n, problem.k) < _LEAST:
        sizes = f"M, N and K are {problem.m}, {problem.n} and {problem.k}"
        return f"{sizes}: copies pay from {_FEWEST_ROWS} rows and from {_LEAST} columns and elements along K on"
    return cannot_align(problem) or cannot_pad(problem)
