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
from tuner.kernels.gemm.any_tile import any_height_tile, any_width_space
from tuner.kernels.gemm.any_tile.any_height_split_model import CONSTANTS, Tile, modelled_us
from tuner.kernels.gemm.any_tile.any_height_tile import UNIT, WARPS
from tuner.kernels.gemm.hopper import chunks, cluster_parts, cluster_sizes
from tuner.kernels.gemm.hopper.resources import OTHER_BYTES, ROW_BYTES, row_length
from tuner.kernels.space import odd_rows, refinements, tile_rules
from tuner.kernels.space.rule import rule
from tuner.kernels.space.tile_rules import SIDES
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
"""How many configs are tried, by the model: the best of so many takes 0.1% longer than that of 40, 7.5% at most
(benchmarks/results/any-height-split-fit.json)."""
_CAUTION = 1.02
"""What the model's estimates count beside those of other kernels: the least of many errs to the low side.

docs/decisions.md, 171."""
_ODD_ROWS = 1.2
"""The same where rows of A or B are odd (docs/decisions.md, 178)."""
_RESERVED_BYTES = 1024
"""Shared memory for the barrier that counts arriving sums."""
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


def default_config(problem: Problem, device: Device) -> Config:
    """The likeliest config."""
    return likeliest(problem, device)[0]


@functools.lru_cache(maxsize=1024)
def likeliest(problem: Problem, device: Device) -> tuple[Config, ...]:
    """The configs that are tried, the likeliest by the model first."""
    tiles = sorted(_at_once(problem, device), key=lambda tile: modelled_us(tile, problem, device, CONSTANTS))
    return tuple(_config(tile, problem) for tile in tiles[:BEST])


def _config(tile: Tile, problem: Problem) -> Config:
    return Config(
        NAME,
        BLOCK_SIZE_M=tile.rows,
        BLOCK_SIZE_N=tile.columns,
        BLOCK_SIZE_K=row_length(problem),
        SPLIT_K=tile.splits,
        launch_pdl=True,
        num_ctas=tile.splits * tile.neighbours,
        num_stages=tile.stages,
        num_warps=WARPS[tile.columns],
        **({refinements.SHARE_B: True} if tile.share_b else {}),
    )


def _at_once(problem: Problem, device: Device) -> Iterator[Tile]:
    """Yield tiles whose clusters all run at once and keep the device busy, with the deepest ring that fits."""
    steps = -(-problem.k // row_length(problem))
    heights = {-(-problem.m // (UNIT * count)) * UNIT for count in range(1, -(-problem.m // _HEIGHTS[0]) + 1)}
    for rows in sorted(heights & {*_HEIGHTS}):
        for columns in WARPS:
            stages = _deepest(rows, columns, problem, device)
            if stages < _FEWEST_STAGES or _sums_each(rows, columns) > _MOST_SUMS[WARPS[columns] // 4]:
                continue
            for splits, neighbours, share_b in _clusters(-(-problem.m // rows), -(-problem.n // columns), device):
                tile = Tile(rows, columns, splits, neighbours, share_b, stages)
                if splits <= steps and parts_bytes(tile) <= _ring_bytes(tile, problem):
                    yield tile


def _clusters(down: int, across: int, device: Device) -> Iterator[tuple[int, int, bool]]:
    """Yield splits, neighbours and whether these lie along M, of so many tiles along M and N that all run at once."""
    for splits in _SPLITS:
        if not _BUSY * device.sm_count <= splits * down * across <= device.sm_count:
            continue
        for neighbours in (1, 2, 4):
            ctas = splits * neighbours
            most = cluster_sizes.room(ctas, device) // ctas if ctas <= _LARGEST_CLUSTER else 0
            if across > neighbours / 2 and -(-across // neighbours) * down <= most:
                yield splits, neighbours, False
            if neighbours > 1 and down > neighbours / 2 and -(-down // neighbours) * across <= most:
                yield splits, neighbours, True


def _deepest(rows: int, columns: int, problem: Problem, device: Device) -> int:
    """The most stages that fit."""
    stage = (chunks.loaded(rows, exchanged(problem)) + columns) * ROW_BYTES + 16
    return min(_MOST_STAGES, (device.shared_bytes - _RESERVED_BYTES - OTHER_BYTES) // stage)


def _sums_each(rows: int, columns: int) -> float:
    """Sums of a multiplying thread."""
    return rows * columns / (32 * WARPS[columns])


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """How long a config takes, microseconds."""
    caution = _ODD_ROWS if any(odd_rows.odd(problem)) else _CAUTION
    return caution * modelled_us(Tile.of(config), problem, device, CONSTANTS)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:  # noqa: ARG001
    """An upper bound on a block's shared memory: the ring, whose place sums take in the end, and barriers."""
    return _ring_bytes(Tile.of(config), problem) + 16 * config.integer("num_stages") + _RESERVED_BYTES + OTHER_BYTES


def _ring_bytes(tile: Tile, problem: Problem) -> int:
    return tile.stages * (chunks.loaded(tile.rows, exchanged(problem)) + tile.columns) * ROW_BYTES


def parts_bytes(tile: Tile) -> int:
    """Bytes of all blocks' sums that one block receives."""
    pairs, pitch = -(-tile.rows // (2 * tile.splits)), int(cluster_parts.pitch(tile.columns))
    return tile.splits * pairs * pitch


@rule("shape", "kernels/gemm/any_tile/any_height_split_jit.py; PTX ISA, wgmma.mma_async", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    columns, warps = config.integer("BLOCK_SIZE_N"), config.integer("num_warps")
    if WARPS.get(columns) != warps:
        return f"{columns} columns for {warps} warps: 64 for 4, 128 or 256 for 8, 192 for 12"
    return any_width_space.no_step(config.integer("BLOCK_SIZE_M"), "rows", config, problem, UNIT)


@rule("clusters", "kernels/gemm/any_tile/any_height_split_jit.py", fatal=True)
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


@rule("ring", "kernels/gemm/any_tile/any_height_split_jit.py: sums take its place", fatal=True)
def _ring(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    tile = Tile.of(config)
    ring, parts = _ring_bytes(tile, problem), parts_bytes(tile)
    return f"{parts} B of sums in a ring of {ring} B" if parts > ring else None


ABLE = (_shape, _cluster, _sums, _ring)
"""What a config has to pass to compute what it should."""


@rule("few stages", "the shape itself: loads of a step would wait for the step before")
def _few_stages(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    stages = config.integer("num_stages")
    return f"{stages} stages, {_FEWEST_STAGES} at least" if stages < _FEWEST_STAGES else None


RULES = (
    tile_rules.parameters(_axes, _OPTIONS),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/any_tile/any_height_split_space.py"),
    *ABLE,
    _few_stages,
)
