"""The order in which a config sums an element along K, and the one order that a batch-invariant family keeps to.

A tensor core adds a few products to a sum at a time. What it rounds follows from how many, and from the instruction, so
two configs write the same bits for certain only if both are the same. docs/numerics.md has the reasons.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernels.base.operands import SCALE_GROUP
from tuner.kernels.space import tile_resources
from tuner.problem import Problem, dtype

_ROW_BYTES = 128
"""Bytes of a row of a step along K: one swizzle of shared memory, which all kernels take and large tiles mostly use."""
_TALL = ("wgmma", "tcgen05")
_TALL_ROWS = 64


class Order(NamedTuple):
    """How an element is summed.

    Attributes:
        instruction: what multiplies; under the interpreter numpy, whose sums depend on the tile, and on whether it is a
            transposed view, as descriptors give it.
        step: BLOCK_SIZE_K, in elements.
        splits: parts of the sum, which are added in order.
        exchanged: whether the device computes the transposed output.
    """

    instruction: str
    step: int
    splits: int = 1
    exchanged: bool = False

    def __str__(self) -> str:
        parts = f" in {self.splits} parts" if self.splits > 1 else ""
        return f"{self.instruction} by {self.step}{parts}{', exchanged' if self.exchanged else ''}"


Ordered = Callable[[Config, Problem, Device], Order]


def of_tile(config: Config, problem: Problem, device: Device) -> Order:
    """The order of a kernel whose `tl.dot` multiplies tiles as its config says."""
    block_m, block_n, block_k = tile_resources.tile(config)
    if device.is_interpreter:
        by_pointers = config.get("LOADS", config.kernel) == "pointer"
        instruction = f"numpy {block_m}x{block_n}{'' if by_pointers else ' of views'}"
    elif tile_resources.asynchronous(config, problem, device):
        instruction = _tall(device)
    else:
        instruction = "mma.sync" if tile_resources.uses_tensor_cores(problem) else "fma"
    exchanged = bool(config.get("SWAP_AB", False))
    return Order(instruction, block_k, config.integer("SPLIT_K", 1), exchanged)


@functools.lru_cache(maxsize=1024)
def of_family(problem: Problem, device: Device) -> Order:
    """The one order of all problems that differ from this one in M, alignment, layout or epilogue alone."""
    size = dtype.ITEMSIZE[problem.a_dtype]
    longest = tile_resources.next_power_of_two(max(tile_resources.shortest_k(problem), problem.k))
    step = SCALE_GROUP if problem.scaling == "block" else min(_ROW_BYTES // size, longest)
    if device.is_interpreter:
        return Order("numpy 32x64", step) if problem.scaling == "block" else Order("numpy 32x32", 32)
    if tile_resources.reads_shared(_TALL_ROWS, _TALL_ROWS, 4, problem, device):
        return Order(_tall(device), step)
    return Order("mma.sync" if tile_resources.uses_tensor_cores(problem) else "fma", step)


def axes_of(problem: Problem, device: Device) -> dict[str, tuple[Value, ...]]:
    """The values of parameters that a family's order leaves."""
    order = of_family(problem, device)
    axes: dict[str, tuple[Value, ...]] = {"BLOCK_SIZE_K": (order.step,), "SWAP_AB": (False,), "SPLIT_K": (1,)}
    if device.is_interpreter:
        rows, columns = (int(side) for side in order.instruction.removeprefix("numpy ").split("x"))
        return {**axes, "BLOCK_SIZE_M": (rows,), "BLOCK_SIZE_N": (columns,)}
    if order.instruction in _TALL:
        return {**axes, "BLOCK_SIZE_M": (64, 128, 192, 256), "num_warps": (4, 8, 12)}
    return axes


def tall_enough(problem: Problem, device: Device) -> Problem:
    """The problem, or the same with as many rows as one instruction of its family's order has."""
    if problem.m >= _TALL_ROWS or device.is_interpreter or of_family(problem, device).instruction not in _TALL:
        return problem
    return problem.with_m(_TALL_ROWS)


def none_on(device: Device) -> str | None:
    """Why no order is known on a device, or None."""
    if device.vendor == "amd":
        return f"no invariant form on {device.arch}: in which order its matrix cores sum has not been looked into"
    return None


def _tall(device: Device) -> str:
    return "wgmma" if device.features.wgmma else "tcgen05"
