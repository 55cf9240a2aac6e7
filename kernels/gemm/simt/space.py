"""The search space of `simt`: tiles, warps, splits of a sum, and the depth of the pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.gemm import splitting
from tuner.kernels.gemm.pointer.space import canonical, supports_operands
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem

NAME = "simt"
DEPTH = 16
"""Elements along K that registers hold at a time."""
LENGTHS = (DEPTH, 2 * DEPTH)
"""BLOCK_SIZE_K: rows of half the banks of shared memory, and of all."""
WHOLE_VECTOR = 4
"""Elements of the longest copy, 16 bytes."""
_STAGES, _GROUPS = (2, 3, 4), (1, 8)
_MOST_SUMS, _FEWEST_SUMS = 128, 8
"""Sums of a thread."""
_SUMS_OF_FEW_WARPS = 64
"""Those of fewer than four warps, which took up to twice as long with more."""
_MOST_COPIES, _COPIES_OF_FEW, _FEW_SUMS = 16, 12, 16
"""Copies of a thread for each step, and those beside more than 64 sums or of a single warp: more spill, but beside few
sums."""
_TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps")
_WARP_ROWS, _WARP_COLUMNS = 16, 32
"""The least part of a tile that a warp's threads divide without computing anything twice, in any layout."""


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if device.is_interpreter:
        return "Gluon has no interpreter"
    if device.vendor != "nvidia":
        return f"no {device.arch}: it copies to shared memory as NVIDIA GPUs do"
    if reason := supports_operands(problem, device):
        return reason
    if tile_resources.uses_tensor_cores(problem):
        return f"{problem.a_dtype}, {problem.precision}: tensor cores multiply that faster"
    return None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(problem, device), RULES, canonical, _expand)


def _axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:  # noqa: ARG001
    """Every parameter's values, except that `_expand` finds GROUP_SIZE_M, SPLIT_K and num_stages for each tile."""
    return {
        "BLOCK_SIZE_M": (16, 32, 64, 128, 256),
        "BLOCK_SIZE_N": (32, 64, 128, 256),
        "BLOCK_SIZE_K": LENGTHS,
        "GROUP_SIZE_M": (1,),
        "SPLIT_K": (1,),
        "num_stages": (2,),
        "num_warps": (1, 2, 4, 8),
        **tile_rules.overlap(device),
    }


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    for splits in splitting.splits_of(config, problem, device):
        groups = _GROUPS if splits == 1 else (1,)
        for group, stages in itertools.product(groups, _STAGES):
            found = config.replace(GROUP_SIZE_M=group, SPLIT_K=splits, num_stages=stages)
            yield found.replace(launch_pdl=overlaps(found, problem, device)) if device.features.pdl else found


def overlaps(config: Config, problem: Problem, device: Device) -> bool:
    """Whether the next launch's programs may start early: not where room for some of them is left beside these.

    Some multiprocessors would get more of them than others. On an H200, with the kernel replayed, configs that left
    such room took 1.3 to 1.6 times as long as with launch_pdl off (not kept).
    """
    rows, columns, _ = tile_resources.tile(config)
    each = -(-splitting.program_count(config, problem) // device.sm_count)
    reserved = device.features.reserved_bytes
    by_memory = (device.shared_bytes + reserved) // (shared_bytes(config, problem, device) + reserved)
    by_registers = tile_resources.simt_programs(rows, columns, config.integer("num_warps"), device)
    return not each < min(by_memory, by_registers) < 2 * each


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:  # noqa: ARG001
    """Shared memory of one block in bytes."""
    return config.integer("num_stages") * tile_resources.tile_bytes(config, problem)


def warps_along_m(rows: int, columns: int, warps: int) -> int:
    """How many warps lie along M: so many that the part of a tile that each has is square, or wider than high."""
    along_m = 1
    while along_m < warps and rows // along_m > columns * along_m // warps:
        along_m *= 2
    return along_m


@rule("sums", "measured on an H200: trials of random products", reads=_TILE)
def _sums(config: Config, problem: Problem, device: Device) -> str | None:
    held = tile_resources.accumulator_registers(config, device)
    most = _MOST_SUMS if config.integer("num_warps") >= 4 else _SUMS_OF_FEW_WARPS
    if held > most:
        return f"a thread would hold {held:g} sums, {most} fit"
    if held < _FEWEST_SUMS:
        return f"a thread would hold {held:g} sums: {_FEWEST_SUMS} and more use again what it reads"
    if held <= _FEW_SUMS:
        return None
    copies = tile_resources.loads_per_thread(config, problem, device)
    beside = held > _SUMS_OF_FEW_WARPS or config.integer("num_warps") == 1
    limit = _COPIES_OF_FEW if beside else _MOST_COPIES
    return f"a thread would copy {copies:g} times a step: {limit} fit" if copies > limit else None


@rule("part of a warp", "the kernel's own", reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps"))
def _part_of_a_warp(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows, columns, _ = tile_resources.tile(config)
    warps = config.integer("num_warps")
    along_m = warps_along_m(rows, columns, warps)
    part = rows // along_m, columns * along_m // warps
    if part[0] >= _WARP_ROWS and part[1] >= _WARP_COLUMNS:
        return None
    return f"{warps} warps have {part[0]}x{part[1]} of {rows}x{columns} each, {_WARP_ROWS}x{_WARP_COLUMNS} at least"


@rule("padding", "the shape itself: the rest of such a tile is masked", reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N"))
def _padding(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows, columns, _ = tile_resources.tile(config)
    covering = [tile_resources.next_power_of_two(extent) for extent in (problem.m, problem.n)]
    for name, block, least, covers in zip("MN", (rows, columns), (_WARP_ROWS, _WARP_COLUMNS), covering, strict=True):
        if block > max(least, covers):
            return f"BLOCK_SIZE_{name} is {block}, {max(least, covers)} covers {name}"
    return None


@rule("depth", "the kernel's own", fatal=True)
def _depth(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    length, stages = config.integer("BLOCK_SIZE_K"), config.integer("num_stages")
    if length < DEPTH:
        return f"BLOCK_SIZE_K is {length}: registers hold {DEPTH}"
    return f"num_stages is {stages}: one is read while another arrives" if stages < 2 else None


@rule("stages", "the shape itself")
def _stages(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    stages, splits = config.integer("num_stages"), config.integer("SPLIT_K", 1)
    steps = -(-tile_resources.tile_counts(config, problem)[2] // splits)
    return f"{stages} stages for {steps} steps along K" if stages > max(2, steps) else None


RULES = (
    tile_rules.parameters(_axes),
    _depth,
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/simt/space.py"),
    _sums,
    _part_of_a_warp,
    *splitting.OF_SPLITS,
    _padding,
    tile_rules.beyond_k,
    _stages,
    tile_rules.waves,
    tile_rules.oblong,
    tile_rules.group,
)
