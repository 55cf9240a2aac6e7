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
_CHAIN = 16
"""Elements of 16 bits that one wgmma adds to a sum. The next adds its own, so longer steps are the same chain of them,
and exchanged operands have been seen to write the same bits."""
_PARTS = (8, 4, 2)
_UNIT = 64
"""Parts of a sum are multiples of so many elements, and few columns are counted in tiles of so many."""
_INTERPRETED = 32
_SHORTEST_PART = 256
_MOST_COLUMNS = 36
"""Tiles of 64 columns up to which sums are split: two sets of sums do not fit the large tiles that suit more."""
_MOST_BLOCKS = 115
"""As many blocks find room at once, in clusters, on 132 multiprocessors of Hopper; each sums a part of a tile."""


class Order(NamedTuple):
    """How an element is summed.

    Attributes:
        instruction: what multiplies; under the interpreter numpy, whose sums depend on the tile, and on whether it is a
            transposed view, as descriptors give it.
        step: elements along K that are added at a time: BLOCK_SIZE_K, or what one instruction adds if it does not
            matter how many follow each other.
        part: elements along K of each part of the sum. Parts are added in order. 0 if there are none, -1 if they are
            not of one length.
        exchanged: whether the device computes the transposed output, where that may matter.
    """

    instruction: str
    step: int
    part: int = 0
    exchanged: bool = False

    def __str__(self) -> str:
        parts = {0: "", -1: " in unequal parts"}.get(self.part, f" in parts of {self.part}")
        return f"{self.instruction} by {self.step}{parts}{', exchanged' if self.exchanged else ''}"


Ordered = Callable[[Config, Problem, Device], Order]


@functools.lru_cache(maxsize=1024)
def family_parts(problem: Problem) -> int:
    """In how many parts the problems of an invariant family sum, by their N and K; 1 for all other problems.

    With few columns there are fewer tiles than multiprocessors, unless several share a sum.
    """
    if not problem.invariant or dtype.ITEMSIZE[problem.a_dtype] != 2:
        return 1
    columns, steps = -(-problem.n // _UNIT), -(-problem.k // _UNIT)
    if columns > _MOST_COLUMNS:
        return 1
    tried = (each for each in _PARTS if columns * each <= _MOST_BLOCKS and steps % each == 0)
    return next((each for each in tried if steps // each * _UNIT >= _SHORTEST_PART), 1)


def within(config: Config, problem: Problem) -> int:
    """In how many parts one program sums: all of them, if no other programs do it with it, as SPLIT_K says."""
    return family_parts(problem) if config.integer("SPLIT_K", 1) == 1 else 1


def by_wgmma(config: Config, problem: Problem, splits: int = 1, *, exchanged: bool = False) -> Order:
    """The order of a kernel that multiplies by wgmma in any case, and sums in `splits` parts."""
    length, chained = config.integer("BLOCK_SIZE_K"), _chained(problem)
    step = _CHAIN if chained else length
    return Order("wgmma", step, _part(problem.k, splits, length), exchanged=exchanged and not chained)


def _chained(problem: Problem) -> bool:
    """Whether on Hopper only the chain of instructions decides a sum."""
    return dtype.ITEMSIZE[problem.a_dtype] == 2


def _part(k: int, splits: int, length: int) -> int:
    steps = -(-k // length)
    if splits == 1:
        return 0
    return -1 if steps % splits else steps // splits * length


def of_tile(config: Config, problem: Problem, device: Device, *, splits: int | None = None) -> Order:
    """The order of a kernel whose `tl.dot` multiplies tiles as its config says, in SPLIT_K or `splits` parts."""
    block_m, block_n, block_k = tile_resources.tile(config)
    splits = config.integer("SPLIT_K", 1) if splits is None else splits
    exchanged = bool(config.get("SWAP_AB", False))
    if device.is_interpreter:
        by_pointers = config.get("LOADS", config.kernel) == "pointer"
        instruction = f"numpy {block_m}x{block_n}{'' if by_pointers else ' of views'}"
    elif tile_resources.asynchronous(config, problem, device):
        if device.features.wgmma:
            return by_wgmma(config, problem, splits, exchanged=exchanged)
        instruction = _tall(device)
    else:
        instruction = "mma.sync" if tile_resources.uses_tensor_cores(problem) else "fma"
    return Order(instruction, block_k, _part(problem.k, splits, block_k), exchanged)


@functools.lru_cache(maxsize=1024)
def of_family(problem: Problem, device: Device) -> Order:
    """The one order of all problems that differ from this one in M, alignment, layout or epilogue alone."""
    step = _step(problem)
    part = _part(problem.k, family_parts(problem), _UNIT)
    if device.is_interpreter:
        blocks = problem.scaling == "block"
        return Order("numpy 32x64", step) if blocks else Order("numpy 32x32", _interpreted_step(problem), part)
    if tile_resources.reads_shared(_TALL_ROWS, _TALL_ROWS, 4, problem, device):
        return Order(_tall(device), _CHAIN if device.features.wgmma and _chained(problem) else step, part)
    return Order("mma.sync" if tile_resources.uses_tensor_cores(problem) else "fma", step, part)


def _step(problem: Problem) -> int:
    """Elements of a row of a step along K, or all of a shorter K."""
    longest = tile_resources.next_power_of_two(max(tile_resources.shortest_k(problem), problem.k))
    return SCALE_GROUP if problem.scaling == "block" else min(_ROW_BYTES // dtype.ITEMSIZE[problem.a_dtype], longest)


def _interpreted_step(problem: Problem) -> int:
    """Elements of a step under the interpreter: more where so few do not divide the parts of a sum."""
    steps = -(-problem.k // _INTERPRETED)
    return _UNIT if steps % family_parts(problem) else _INTERPRETED


def axes_of(problem: Problem, device: Device, *, exchanges: bool = False) -> dict[str, tuple[Value, ...]]:
    """The values of parameters that a family's order leaves; `exchanges`: for a kernel that exchanges its operands."""
    order = of_family(problem, device)
    steps = (1, 2, 4, 8) if order.instruction == "wgmma" and _chained(problem) else (1,)
    length = order.step if device.is_interpreter else _step(problem)
    axes: dict[str, tuple[Value, ...]] = {
        "BLOCK_SIZE_K": tuple(length * each for each in steps),
        "SWAP_AB": (False,),
        "SPLIT_K": (family_parts(problem),),
    }
    if device.is_interpreter:
        rows, columns = (int(side) for side in order.instruction.removeprefix("numpy ").split("x"))
        return {**axes, "BLOCK_SIZE_M": (rows,), "BLOCK_SIZE_N": (columns,)}
    if order.instruction in _TALL:
        tall = "BLOCK_SIZE_N" if exchanges else "BLOCK_SIZE_M"
        return {**axes, tall: (64, 128, 192, 256), "num_warps": (4, 8, 12)}
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
