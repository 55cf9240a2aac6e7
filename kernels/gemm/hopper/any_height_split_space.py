"""The search space of `any_height_split`: tiles so few that clusters which split their sums all run at once.

A tile has any share of A's rows, and each SPLIT_K blocks of a cluster share its sum; a cluster of more blocks than that
has several tiles, side by side along N, or with SHARE_B along M.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gemm.hopper import any_height_tile, any_width_space, cluster_parts, cluster_sizes
from tuner.kernels.gemm.hopper.any_height_split_model import CONSTANTS, modelled_us
from tuner.kernels.gemm.hopper.any_height_tile import SIDES, WARPS, as_computed, unit
from tuner.kernels.gemm.hopper.resources import row_length
from tuner.kernels.space import refinements, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem, dtype

NAME = "any_height_split"
_HEIGHTS = (*range(32, 257, 8),)
"""Rows of tiles."""
_SPLITS = (2, 4, 8)
"""Blocks that share a tile's sum, which are the values of SPLIT_K."""
_LARGEST_CLUSTER = 8
_MOST_SUMS = {1: 128, 2: 208, 3: 96}
"""The most sums of a multiplying thread, by the number of warpgroups."""
_FEWEST_ROWS = 65
"""Rows of A that it serves: of fewer, `cluster_k` splits sums."""
_SHORTEST_K = 1024
_FEWEST_STAGES, _MOST_STAGES = 3, 12
_BUSY = 0.4
"""The share of the multiprocessors that a config has to keep busy."""
BEST = 14
"""How many configs are tried, by the model: the best of so many takes 0.2% longer than that of 40, 7.5% at most
(benchmarks/results/any-height-split-fit.json)."""
_CAUTION = 1.1
"""What the model's estimates are multiplied by beside those of other kernels: the least of many errs to the low side.

Of 56 drawn problems whose default it was without this factor, in up to 28 clusters of four, the 35 that stay took 0.90
of the time of the default before, and none more than 1.10 times as long; the other 21 took 1.02 of it, at most 1.27 (by
hand, of benchmarks/results/few-tiles-first-h200.json and few-tiles-second-h200.json)."""
_RESERVED_BYTES, _OTHER_BYTES = 1024, 256
"""Shared memory for the barrier that counts arriving sums, and through which Triton passes values between warps."""
_OPTIONS = (refinements.NUM_CTAS, refinements.SHARE_B)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if dtype.ITEMSIZE[problem.a_dtype] != 2:
        return f"{problem.dtype_label}: it is for operands of 16 bits"
    if reason := any_height_tile.unserved(problem, device):
        return reason
    if problem.m < _FEWEST_ROWS:
        return f"M is {problem.m}: it is for {_FEWEST_ROWS} rows of A or more"
    if problem.k < _SHORTEST_K:
        return f"K is {problem.k}: it splits sums of {_SHORTEST_K} and more"
    few = "its tiles, in clusters that split their sums, do not all run at once, or leave most of the device idle"
    return None if likeliest(problem, device) else f"{problem.m}x{problem.n} sums: {few}"


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    axes = _axes(problem, device)
    return SearchSpace(NAME, problem, device, axes, RULES, expand=_expand, options=_OPTIONS)


def _axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:  # noqa: ARG001
    """Every parameter's values, except that `_expand` finds those of the axes with a single value here."""
    return {
        "BLOCK_SIZE_M": _HEIGHTS,
        "BLOCK_SIZE_N": (*WARPS,),
        "num_warps": tuple(sorted({*WARPS.values()})),
        "BLOCK_SIZE_K": (row_length(problem),),
        "SPLIT_K": (_SPLITS[0],),
        "num_stages": (1,),
        "launch_pdl": (True,),
    }


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield the likeliest configs with a tile's sides."""
    sides = (*SIDES, "num_warps")
    yield from (one for one in likeliest(problem, device) if all(one[name] == config[name] for name in sides))


@functools.lru_cache(maxsize=1024)
def likeliest(problem: Problem, device: Device) -> tuple[Config, ...]:
    """The configs that are tried, the likeliest by the model first."""
    able = (one for one in _at_once(problem, device) if not any(rule.rejects(one, problem, device) for rule in ABLE))
    return tuple(sorted(able, key=lambda one: estimate_us(one, problem, device))[:BEST])


def _at_once(problem: Problem, device: Device) -> Iterator[Config]:
    """Yield whatever clusters all run at once and keep the device busy, with the deepest ring that fits."""
    step = unit(problem)
    heights = {-(-problem.m // (step * count)) * step for count in range(1, -(-problem.m // _HEIGHTS[0]) + 1)}
    for rows in sorted(heights & {*_HEIGHTS}):
        for columns, warps in WARPS.items():
            down, across = -(-problem.m // rows), -(-problem.n // columns)
            for kind in _clusters(down, across, device):
                tile = Config(NAME, BLOCK_SIZE_M=rows, BLOCK_SIZE_N=columns, num_warps=warps, **kind)
                one = tile.replace(BLOCK_SIZE_K=row_length(problem), launch_pdl=True, num_stages=1)
                yield one.replace(num_stages=_deepest(one, device))


def _clusters(down: int, across: int, device: Device) -> Iterator[dict[str, Value]]:
    """Yield the splits and the clusters of so many tiles along M and N that all run at once."""
    for splits in _SPLITS:
        if not _BUSY * device.sm_count <= splits * down * across <= device.sm_count:
            continue
        for tiles in (1, 2, 4):
            ctas = splits * tiles
            most = cluster_sizes.room(ctas, device) // ctas if ctas <= _LARGEST_CLUSTER else 0
            kind: dict[str, Value] = {"SPLIT_K": splits, refinements.NUM_CTAS: ctas}
            if across > tiles / 2 and -(-across // tiles) * down <= most:
                yield kind
            if tiles > 1 and down > tiles / 2 and -(-down // tiles) * across <= most:
                yield {**kind, refinements.SHARE_B: True}


def _deepest(config: Config, device: Device) -> int:
    """The most stages that fit."""
    stage = any_width_space.ring_bytes(config) + 16
    return min(_MOST_STAGES, (device.shared_bytes - _RESERVED_BYTES - _OTHER_BYTES) // stage)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """How long a config takes, microseconds."""
    return _CAUTION * modelled_us(as_computed(config), exchanged(problem), device, CONSTANTS)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:  # noqa: ARG001
    """An upper bound on a block's shared memory: the ring, whose place sums take in the end, and barriers."""
    return any_width_space.ring_bytes(config) + 16 * config.integer("num_stages") + _RESERVED_BYTES + _OTHER_BYTES


def parts_bytes(config: Config) -> int:
    """Bytes of all blocks' sums that one block receives."""
    splits, pairs = config.integer("SPLIT_K"), -(-config.integer("BLOCK_SIZE_M") // (2 * config.integer("SPLIT_K")))
    pitch: int = cluster_parts.pitch(config.integer("BLOCK_SIZE_N"))
    return splits * pairs * pitch


@rule("shape", "kernels/gemm/hopper/any_height_split_jit.py; PTX ISA, wgmma.mma_async", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    columns, warps = config.integer("BLOCK_SIZE_N"), config.integer("num_warps")
    if WARPS.get(columns) != warps:
        return f"{columns} columns for {warps} warps: 64 for 4, 128 or 256 for 8, 192 for 12"
    return any_width_space.no_step(config.integer("BLOCK_SIZE_M"), "rows", config, problem, unit(problem))


@rule("clusters", "kernels/gemm/hopper/any_height_split_jit.py", fatal=True)
def _cluster(config: Config, problem: Problem, device: Device) -> str | None:
    splits, ctas = config.integer("SPLIT_K"), config.integer(refinements.NUM_CTAS, 0)
    if splits not in _SPLITS or ctas not in range(splits, _LARGEST_CLUSTER + 1, splits):
        return f"clusters of {ctas} for SPLIT_K {splits}: up to {_LARGEST_CLUSTER} blocks split sums in 2, 4 or 8"
    if not cluster_sizes.room(ctas, device):
        return f"clusters of {ctas}: {device.sm_count} multiprocessors may have none of so many in one GPC"
    steps = -(-problem.k // config.integer("BLOCK_SIZE_K"))
    return f"{splits} blocks for {steps} steps along K" if splits > steps else None


@rule("registers", "compiled for sm_90", fatal=True, reads=(*SIDES, "num_warps"))
def _sums(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    return any_width_space.too_many_sums(config, _MOST_SUMS)


@rule("ring", "kernels/gemm/hopper/any_height_split_jit.py: sums take its place", fatal=True)
def _ring(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    ring, parts = any_width_space.ring_bytes(config), parts_bytes(config)
    return f"{parts} B of sums in a ring of {ring} B" if parts > ring else None


ABLE = (_shape, _cluster, _sums, _ring)
"""What a config has to pass to compute what it should."""


@rule("few stages", "the shape itself: loads of a step would wait for the step before")
def _few_stages(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    stages = config.integer("num_stages")
    return f"{stages} stages, {_FEWEST_STAGES} at least" if stages < _FEWEST_STAGES else None


RULES = (
    tile_rules.parameters(_axes, _OPTIONS),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/hopper/any_height_split_space.py"),
    *ABLE,
    _few_stages,
)
