"""Splits of a tile's sum along K over several programs: the axes SPLIT_K and LOADS, and their rules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import Rule
from tuner.kernels.base.workspace import MOST_BYTES, MOST_TILES
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem, dtype

SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""About how many splits are tried: each is lowered to the fewest splits with as many steps in each (`_evened`)."""
_MOST_WAVES = 4
_DEEP = 4
"""Number of stages that hides the latency of a load."""
_MOST_UNEVEN = 8
"""Splits of unequal length may waste at most 1/8 of the steps."""


@functools.lru_cache(maxsize=1024)
def loads(problem: Problem, device: Device) -> tuple[str, ...]:
    """The ways to load a problem's operands on a device, which are the values of the axis LOADS."""
    return ("pointer",) if tma_space.supports(problem, device) else ("pointer", "tma")


def by_tma(config: Config) -> bool:
    """Whether a config loads through descriptors."""
    return bool(config.get("LOADS") == "tma")


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block in bytes, for either way of loading."""
    if by_tma(config):
        return tma_space.shared_bytes(config, problem, device)
    return tile_resources.shared_bytes(config, problem, device)


def program_count(config: Config, problem: Problem) -> int:
    """Number of programs in a launch."""
    tiles_m, tiles_n, _ = tile_resources.tile_counts(config, problem)
    return tiles_m * tiles_n * config.integer("SPLIT_K", 1)


def tie_break(config: Config, problem: Problem, device: Device) -> tuple[float, ...]:
    """The sort key of configs that take equally long, preferred configs first.

    For few rows of A, many configs reach the memory's bandwidth. Those with the fewest splits come first, then those
    that read B the fewest times, then those with the smallest tiles.
    """
    block_m, block_n, block_k = tile_resources.tile(config)
    splits, stages = config.integer("SPLIT_K", 1), config.integer("num_stages")
    # If two programs fit a multiprocessor, or half the device is free, the next launch's programs can start early.
    twice = 2 * stages * tile_resources.tile_bytes(config, problem) + 4096 <= device.shared_bytes
    settled = twice or 2 * program_count(config, problem) <= device.sm_count
    tiles_m, tiles_n, _ = tile_resources.tile_counts(config, problem)
    order = splits, min(tiles_m, tiles_n), block_m * block_n, stages < _DEEP, -block_k, not settled, -stages
    return *order, config.integer("num_warps")


def formula_axes(problem: Problem, device: Device) -> dict[str, tuple[Value, ...]]:
    """The part of the axes that a default formula considers: rows of 128 to 512 bytes, and descriptors if possible."""
    if device.is_interpreter:
        return {}
    size = dtype.ITEMSIZE[problem.a_dtype]
    longest = tile_resources.next_power_of_two(max(tile_resources.shortest_k(problem), problem.k))
    rows = (128, 256, 512) if tile_resources.uses_tensor_cores(problem) else (128, 256)
    lengths = {min(longest, row // size) for row in rows}
    return {"BLOCK_SIZE_K": tuple(lengths), "LOADS": loads(problem, device)[-1:]}


def on_view(
    view: Callable[[Config, Problem], tuple[Config, Problem]], rule: Rule, chosen_by: tuple[str, ...] = ()
) -> Rule:
    """Make a rule for configs and problems as given from a rule for them as the device computes them.

    Args:
        view: converts a config and its problem to what the device computes, which may have both sides exchanged.
        rule: the rule for what the device computes.
        chosen_by: parameters on which the conversion depends.
    """

    def rejects(config: Config, problem: Problem, device: Device) -> str | None:
        return rule.rejects(*view(config, problem), device)

    reads = tuple(dict.fromkeys((*rule.reads, "BLOCK_SIZE_M", "BLOCK_SIZE_N", *chosen_by))) if rule.reads else ()
    return dataclasses.replace(rule, rejects=rejects, reads=reads)


@rule("workspace", "kernels/base/workspace.py", fatal=True)
def workspace(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    splits = config.integer("SPLIT_K", 1)
    if splits == 1:
        return None
    tiles_m, tiles_n, _ = tile_resources.tile_counts(config, problem)
    block_m, block_n, _ = tile_resources.tile(config)
    needed = tiles_m * tiles_n * splits * block_m * block_n * 4
    if needed > MOST_BYTES:
        return f"{needed} B of partial sums, at most {MOST_BYTES} are kept"
    return f"{tiles_m * tiles_n} tiles, {MOST_TILES} have a counter" if tiles_m * tiles_n > MOST_TILES else None


@rule("idle split", "the shape itself")
def _idle_split(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    return _uneven(config.integer("SPLIT_K", 1), tile_resources.tile_counts(config, problem)[2])


def _uneven(splits: int, steps: int) -> str | None:
    """Why a number of splits does not suit a number of steps along K, or None."""
    each = -(-steps // splits)
    if splits > 1 and (splits - 1) * each >= steps:
        return f"{splits} splits of {steps} steps: one would have none"
    if splits > 1 and each < 2:
        return f"{splits} splits of {steps} steps: no load overlaps the sums"
    if (splits * each - steps) * _MOST_UNEVEN > steps:
        return f"{splits} splits of {steps} steps: the last has {steps - (splits - 1) * each}, the others {each}"
    return None


@rule("crowd", "the shape itself: every split costs a round trip of its sums through the L2")
def _crowd(config: Config, problem: Problem, device: Device) -> str | None:
    if problem.invariant:
        return None
    tiles_m, tiles_n, steps = tile_resources.tile_counts(config, problem)
    return _misfilled(config.integer("SPLIT_K", 1), tiles_m * tiles_n, steps, device)


def _misfilled(splits: int, tiles: int, steps: int, device: Device) -> str | None:
    """Why a number of splits does not suit a device for a number of tiles and steps, or None."""
    if splits == 1 or device.is_interpreter:
        return None
    programs = tiles * splits
    if tiles > 2 * device.sm_count:
        return f"{tiles} tiles fill {device.sm_count} multiprocessors unsplit"
    if 2 * programs < device.sm_count and steps > 8 * splits and splits < _evened(SPLITS[-1], steps):
        return f"{programs} programs on {device.sm_count} multiprocessors: more splits fill them"
    if programs > _MOST_WAVES * device.sm_count:
        return f"{programs} programs on {device.sm_count} multiprocessors: fewer splits fill them"
    return None


def _evened(splits: int, steps: int) -> int:
    """The fewest splits of which none has more steps than with `splits`; each has at least one."""
    return -(-steps // -(-steps // splits))


def expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile with every SPLIT_K and num_stages worth trying, for the problem as the device computes it."""
    for splits in splits_of(config, problem, device):
        for stages in depths_of(config, splits, problem, device):
            yield config.replace(SPLIT_K=splits, num_stages=stages)


def splits_of(config: Config, problem: Problem, device: Device) -> list[int]:
    """Every SPLIT_K worth trying for a tile, in ascending order."""
    tiles_m, tiles_n, steps = tile_resources.tile_counts(config, problem)
    if problem.invariant:
        return [config.integer("SPLIT_K")]  # which its whole family has
    if device.is_interpreter:
        tried = [config.integer("SPLIT_K")]
    else:
        tried = sorted({_evened(splits, steps) for splits in (1, *SPLITS)})
    even = (splits for splits in tried if _uneven(splits, steps) is None)
    return [splits for splits in even if _misfilled(splits, tiles_m * tiles_n, steps, device) is None]


def depths_of(config: Config, splits: int, problem: Problem, device: Device) -> list[int]:
    """Every num_stages worth trying for a tile with a number of splits."""
    if device.is_interpreter:
        return [1]
    each = -(-problem.k // (config.integer("BLOCK_SIZE_K") * splits))
    stage = tile_resources.tile_bytes(config, problem) + (8 if by_tma(config) else 0)
    # mma.sync holds one stage in registers, so there is one stage more than there are buffers.
    extra = tile_resources.holds_a_step(config, problem, device)
    depths = tma_space.depths(stage, 16, each, device)
    stages = {min(each, depth) + (extra and depth < each) for depth in depths}
    return sorted({min(depth, tile_resources.most_stages(device)) for depth in stages})


def amd_axes(device: Device) -> dict[str, tuple[Value, ...]]:
    """Axes for the compiler's options on AMD, with one value each."""
    return {"matrix_instr_nonkdim": (16,), "kpack": (1,)} if device.vendor == "amd" else {}


OF_SPLITS = (workspace, _idle_split, _crowd)
"""Rules for kernels that may split sums."""
RULES = (tile_rules.shared_memory(shared_bytes, "kernels/gemm/splitting.py"), *OF_SPLITS)
"""Rules for kernels that load either way and may split sums. They apply to the problem as the device computes it."""
