"""The search space of `any_height_split`: tiles so few that clusters which split their sums all run at once.

A tile has any share of A's rows, and each SPLIT_K blocks of a cluster share its sum; a cluster of more blocks than that
has several tiles, side by side along N, or with SHARE_B along M. With block scales a block may sum a tile alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gemm.any_tile import any_height_tile, any_width_space, scaled_steps
from tuner.kernels.gemm.any_tile.any_height_split_model import Tile, constants_of, modelled_us
from tuner.kernels.gemm.any_tile.any_height_tile import STEP, UNIT, WARPS
from tuner.kernels.gemm.hopper import chunks, cluster_parts, cluster_sizes
from tuner.kernels.gemm.hopper.resources import OTHER_BYTES, ROW_BYTES, row_length
from tuner.kernels.space import odd_rows, refinements, tile_rules
from tuner.kernels.space.rule import rule
from tuner.kernels.space.tile_rules import SIDES
from tuner.problem import Problem, dtype

NAME = "any_height_split"
_FLATTEST = 32
"""Rows of A in the flattest share of them that is tried."""
_LARGEST_CLUSTER = 8
_FEWEST_ROWS = 65
"""Rows of A of 16 bits that it serves: of fewer, `cluster_k` splits sums."""
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


class _Limits(NamedTuple):
    """What tiles may be.

    Attributes:
        heights: their rows.
        splits: blocks that share a tile's sum, which are the values of SPLIT_K.
        most_sums: the most sums of a multiplying thread, by the number of warpgroups.
    """

    heights: tuple[int, ...]
    splits: tuple[int, ...]
    most_sums: Mapping[int, int]


_PLAIN = _Limits((*range(32, 257, 8),), (2, 4, 8), {1: 128, 2: 208, 3: 96})
_SCALED = _Limits((*range(16, int(scaled_steps.MOST_COLUMNS) + 1, 8),), (1, 2, 4, 8), {1: 64, 2: 64, 3: 56})
"""With block scales, where a thread holds products besides its sums."""


def _limits(problem: Problem) -> _Limits:
    return _SCALED if problem.scaling == "block" else _PLAIN


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    scaled = problem.scaling == "block"
    if dtype.ITEMSIZE[problem.a_dtype] != 2 and not scaled:
        return f"{problem.dtype_label}: it is for operands of 16 bits, or with block scales"
    unserved = any_height_tile.unserved_scaled if scaled else any_height_tile.unserved
    if reason := unserved(problem, device):
        return reason
    if problem.m < _FEWEST_ROWS and not scaled:
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
        "BLOCK_SIZE_M": _limits(problem).heights,
        "BLOCK_SIZE_N": (*WARPS,),
        "num_warps": tuple(sorted({*WARPS.values()})),
        "BLOCK_SIZE_K": (row_length(problem),),
        "SPLIT_K": (_limits(problem).splits[0],),
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
    by = constants_of(problem)
    tiles = sorted(_at_once(problem, device), key=lambda tile: modelled_us(tile, problem, device, by))
    return tuple(_config(tile, problem) for tile in tiles[:BEST])


def _config(tile: Tile, problem: Problem) -> Config:
    return Config(
        NAME,
        BLOCK_SIZE_M=tile.rows,
        BLOCK_SIZE_N=tile.columns,
        BLOCK_SIZE_K=row_length(problem),
        SPLIT_K=tile.splits,
        launch_pdl=True,
        num_stages=tile.stages,
        num_warps=WARPS[tile.columns],
        **({refinements.NUM_CTAS: tile.ctas} if tile.ctas > 1 else {}),
        **({refinements.SHARE_B: True} if tile.share_b else {}),
    )


def _at_once(problem: Problem, device: Device) -> Iterator[Tile]:
    """Yield tiles whose clusters all run at once and keep the device busy, with the deepest ring that fits."""
    steps = -(-problem.k // row_length(problem))
    tried = _limits(problem).heights
    shares = (-(-problem.m // (UNIT * count)) * UNIT for count in range(1, -(-problem.m // _FLATTEST) + 1))
    for rows in sorted({max(tried[0], share) for share in shares} & {*tried}):
        for columns in WARPS:
            if _sums_each(rows, columns) > _limits(problem).most_sums[WARPS[columns] // 4]:
                continue
            down, across = -(-problem.m // rows), -(-problem.n // columns)
            for cluster in _clusters(_limits(problem).splits, down, across, device):
                tile = _deepest(Tile(rows, columns, *cluster, 0), problem, device)
                whole = tile.ctas > 1 or rows % STEP == 0
                if whole and tile.stages >= _FEWEST_STAGES and tile.splits <= steps and _holds_parts(tile, problem):
                    yield tile


def _clusters(tried: tuple[int, ...], down: int, across: int, device: Device) -> Iterator[tuple[int, int, bool]]:
    """Yield splits, neighbours and whether these lie along M, of so many tiles along M and N that all run at once."""
    for splits in tried:
        if not _BUSY * device.sm_count <= splits * down * across <= device.sm_count:
            continue
        for neighbours in (1, 2, 4):
            ctas = splits * neighbours
            most = cluster_sizes.room(ctas, device) // ctas if ctas <= _LARGEST_CLUSTER else 0
            if across > neighbours / 2 and -(-across // neighbours) * down <= most:
                yield splits, neighbours, False
            if neighbours > 1 and down > neighbours / 2 and -(-down // neighbours) * across <= most:
                yield splits, neighbours, True


def _deepest(tile: Tile, problem: Problem, device: Device) -> Tile:
    """The tile with the most stages that fit."""
    room = device.shared_bytes - _beside_ring(tile, problem)
    return tile._replace(stages=min(_MOST_STAGES, room // (_stage_bytes(tile, problem) + 16)))


def _beside_ring(tile: Tile, problem: Problem) -> int:
    """Shared memory besides the ring and its barriers: sums pass through it where a block stores its own."""
    stored = WARPS[tile.columns] // 4 * any_width_space.scratch_bytes(problem)
    return OTHER_BYTES + (_RESERVED_BYTES if tile.ctas > 1 else stored)


def _stage_bytes(tile: Tile, problem: Problem) -> int:
    scales = any_width_space.scale_rows(problem)
    return (chunks.loaded(tile.rows, exchanged(problem)) + tile.columns + scales) * ROW_BYTES


def _sums_each(rows: int, columns: int) -> float:
    """Sums of a multiplying thread."""
    return rows * columns / (32 * WARPS[columns])


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """How long a config takes, microseconds."""
    caution = _ODD_ROWS if any(odd_rows.odd(problem)) else _CAUTION
    return caution * modelled_us(Tile.of(config), problem, device, constants_of(problem))


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:  # noqa: ARG001
    """An upper bound on a block's shared memory: the ring, whose place sums take in the end, and barriers."""
    tile = Tile.of(config)
    return _ring_bytes(tile, problem) + 16 * tile.stages + _beside_ring(tile, problem)


def _ring_bytes(tile: Tile, problem: Problem) -> int:
    return tile.stages * _stage_bytes(tile, problem)


def _holds_parts(tile: Tile, problem: Problem) -> bool:
    return tile.ctas == 1 or parts_bytes(tile) <= _ring_bytes(tile, problem)


def parts_bytes(tile: Tile) -> int:
    """Bytes of all blocks' sums that one block receives."""
    pairs, pitch = -(-tile.rows // (2 * tile.splits)), int(cluster_parts.pitch(tile.columns))
    return tile.splits * pairs * pitch


@rule("shape", "kernels/gemm/any_tile/any_height_split_jit.py; PTX ISA, wgmma.mma_async", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows, columns, warps = (config.integer(name) for name in (*SIDES, "num_warps"))
    if WARPS.get(columns) != warps:
        return f"{columns} columns for {warps} warps: 64 for 4, 128 or 256 for 8, 192 for 12"
    if config.integer(refinements.NUM_CTAS, 1) == 1 and rows % STEP:
        return f"{rows} rows without a cluster: a block stores {STEP} at a time"
    if problem.scaling == "block" and (columns == max(WARPS) or rows > max(_SCALED.heights)):
        return f"a tile of {rows}x{columns} with block scales: up to {max(_SCALED.heights)} rows, 192 columns"
    return any_width_space.no_step(config.integer("BLOCK_SIZE_M"), "rows", config, problem, UNIT)


@rule("clusters", "kernels/gemm/any_tile/any_height_split_jit.py", fatal=True)
def _cluster(config: Config, problem: Problem, device: Device) -> str | None:
    splits, ctas = config.integer("SPLIT_K"), config.integer(refinements.NUM_CTAS, 1)
    if splits not in _limits(problem).splits or ctas not in range(splits, _LARGEST_CLUSTER + 1, splits):
        return f"clusters of {ctas} for SPLIT_K {splits}: up to {_LARGEST_CLUSTER} blocks split sums in 2, 4 or 8"
    if ctas > 1 and not cluster_sizes.room(ctas, device):
        return f"clusters of {ctas}: {device.sm_count} multiprocessors may have none of so many in one GPC"
    steps = -(-problem.k // config.integer("BLOCK_SIZE_K"))
    return f"{splits} blocks for {steps} steps along K" if splits > steps else None


@rule("registers", "compiled for sm_90", fatal=True, reads=(*SIDES, "num_warps"))
def _sums(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    return any_width_space.too_many_sums(config, _limits(problem).most_sums)


@rule("ring", "kernels/gemm/any_tile/any_height_split_jit.py: sums take its place", fatal=True)
def _ring(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    tile = Tile.of(config)
    if _holds_parts(tile, problem):
        return None
    return f"{parts_bytes(tile)} B of sums in a ring of {_ring_bytes(tile, problem)} B"


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
