"""The search space of `any_height`: tiles with any multiple of 8 of A's rows.

Up to 256 rows a tile has all of them, or half. Of more it has as many as fill the device's waves best, unless they are
fp8. And up to 640 rows it may have any share of them with which all tiles run at once, alone or in clusters.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gemm.any_tile import any_width_space
from tuner.kernels.gemm.any_tile.any_height_tile import (
    ABLE,
    CLUSTER,
    HEIGHTS,
    NAME,
    OPTIONS,
    PAIR,
    STEP,
    UNIT,
    WARPS,
    as_computed,
    deepest,
    own_estimate_us,
    shared_bytes,
    tile_config,
    unserved,
)
from tuner.kernels.gemm.hopper import cluster_sizes, ping_pong_model
from tuner.kernels.gemm.hopper.resources import row_length, tiles
from tuner.kernels.space import refinements, tile_rules
from tuner.kernels.space.rule import rule
from tuner.kernels.space.tile_rules import SIDES
from tuner.problem import Problem, dtype

_FEWEST_ROWS = 65
"""Rows of A that it serves. For fewer, `cluster_k` and `swap_ab` were as fast or faster: docs/lessons.md."""
FEW_ROWS = any_width_space.EXCHANGED_ROWS
"""Rows of A up to which a tile has all of them, or half."""
_HALVED = 128
"""Rows of A beyond which two tiles with half of them each are tried, too."""
_ROWS_OF_MANY = {128: (80, 256), 192: (80, 192), 256: (80, 208)}
"""Rows of tiles for more than `FEW_ROWS` rows of A, from and to, by their columns: of one wgmma, with sums that fit.

From 136x256 on a thread spills up to 256 bytes where `out` has strides that TMA cannot write.
"""
MOST_ROWS_AT_ONCE = 640
"""Rows of A up to which tiles are tried that all run at once: of more, others were as fast (decision 152)."""
BUSY = 0.7
"""The share of the multiprocessors that such tiles have to keep busy."""
_BEST_AT_ONCE = 6
"""How many of them are tried, by the model: they lost 0.07% to all that were measured, at most 3.8% (decision 152)."""
_NEAR, _BEST = 1.02, 3
"""Of tiles for more rows than `FEW_ROWS` those are tried that ask up to so many times as much as the best one, and at
most so many."""
_WAVES, _SMALL = 4, 120 * 128
"""Of tiles with fewer sums, more waves are not tried: in all four problems that had such, others took 1 to 4% less."""
_GROUPS = (3, 6, 12)
"""GROUP_SIZE_M for more than `FEW_ROWS` rows of A: each was the fastest somewhere, 3 most often (decision 146). Where
all tiles run at once the best of them takes 1.02 times as long as 1, and never less than 0.995 (decision 154)."""
_IDLE_SHARE = 1 / 3
"""With tiles for fewer of the multiprocessors, other kernels split sums along K."""


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := unserved(problem, device):
        return reason
    if problem.m < _FEWEST_ROWS:
        return f"M is {problem.m}: it is for {_FEWEST_ROWS} rows of A or more"
    if _is_many(problem):
        columns = min(_ROWS_OF_MANY)
        return f"N is {problem.n}: a tile has {columns} columns" if problem.n < columns else None
    if _fills_by_all_rows(problem, device) or tiles_at_once(problem, device):
        return None
    if problem.m > FEW_ROWS:
        return f"{problem.m} rows of {problem.dtype_label}: of more than {FEW_ROWS} it takes what runs at once"
    return f"N is {problem.n}: its {-(-problem.n // min(WARPS))} smallest tiles leave most of the device idle"


def _is_many(problem: Problem) -> bool:
    """Whether tiles walk over rows of A in groups: of more than `FEW_ROWS`. For fp8 `any_height_ping_pong` does so."""
    return problem.m > FEW_ROWS and dtype.ITEMSIZE[problem.a_dtype] == 2


def _fills_by_all_rows(problem: Problem, device: Device) -> bool:
    """Whether tiles that have all of few rows keep enough multiprocessors busy."""
    return problem.m <= FEW_ROWS and -(-problem.n // min(WARPS)) >= _IDLE_SHARE * device.sm_count


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    axes = _axes(problem, device)
    return SearchSpace(NAME, problem, device, axes, RULES, expand=_expand, options=OPTIONS)


def _axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:  # noqa: ARG001
    """Every parameter's values, except that `_expand` finds those of the axes with a single value here."""
    return {
        "BLOCK_SIZE_M": HEIGHTS,
        "BLOCK_SIZE_N": (*WARPS,),
        "num_warps": tuple(sorted({*WARPS.values()})),
        "BLOCK_SIZE_K": (row_length(problem),),
        "GROUP_SIZE_M": (1,),
        "num_stages": (1,),
        "launch_pdl": (True,),
    }


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile with the deepest ring that fits: for few rows of A alone and in clusters, else in several orders.

    Where all tiles run at once, in what is likeliest of these.
    """
    found, sides = list[Config](), tuple(config.integer(name) for name in SIDES)
    if _fills_by_all_rows(problem, device) and _has_all_rows(config, problem):
        found = [config, config.replace(num_ctas=CLUSTER)]
    elif _is_many(problem) and sides in _best_tiles(problem, device):
        found = [config.replace(GROUP_SIZE_M=group) for group in _groups(config, problem, device)]
    at_once = (one for one in tiles_at_once(problem, device) if _alike(one, config, (*SIDES, "num_warps")))
    yield from dict.fromkeys((*(deepest(one, problem, device) for one in found), *at_once))


def _groups(config: Config, problem: Problem, device: Device) -> list[int]:
    """The orders that a tile is tried in for more than `FEW_ROWS` rows of A: none but one where all run at once."""
    if problem.m <= MOST_ROWS_AT_ONCE and tiles(config, problem) <= device.sm_count:
        return [1]
    widest = max(_GROUPS[0], -(-problem.n // config.integer("BLOCK_SIZE_N")))
    return [min(group, widest) for group in (_GROUPS if fills_waves(problem, device) else _GROUPS[:1])]


def _alike(one: Config, other: Config, names: tuple[str, ...]) -> bool:
    return all(one.get(name) == other.get(name) for name in names)


def _has_all_rows(config: Config, problem: Problem) -> bool:
    """Whether tiles have all of few rows of A, or half, and columns that were tried for it."""
    return config["BLOCK_SIZE_M"] in _heights_of_few(problem) and config["BLOCK_SIZE_N"] in any_width_space.EXCHANGED


def _heights_of_few(problem: Problem) -> list[int]:
    rows = problem.m, *((-(-problem.m // 2),) if problem.m > _HALVED else ())
    return [-(-each // STEP) * STEP for each in rows]


@functools.lru_cache(maxsize=1024)
def tiles_at_once(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Tiles that all run at once and keep the device busy, the likeliest by the model, the best first.

    Each has a whole share of A's rows, or less than one `UNIT` more; of more than `FEW_ROWS` also the least height
    (decision 154).
    """
    if problem.m > MOST_ROWS_AT_ONCE:
        return ()
    heights = {-(-problem.m // (UNIT * count)) * UNIT for count in range(1, -(-problem.m // HEIGHTS[0]) + 1)}
    heights |= {HEIGHTS[0]} if problem.m > FEW_ROWS else set()
    found = [
        tile_config(rows, columns, problem, device, **kind)
        for rows in sorted(heights & {*HEIGHTS})
        for columns in WARPS
        for kind in _kinds_at_once(-(-problem.m // rows), -(-problem.n // columns), device)
    ]
    able = (one for one in found if not any(rule.rejects(one, problem, device) for rule in (*ABLE, _halves)))
    return tuple(sorted(able, key=lambda one: own_estimate_us(one, problem, device))[:_BEST_AT_ONCE])


def _kinds_at_once(down: int, across: int, device: Device) -> Iterator[Mapping[str, Value]]:
    """Yield how so many tiles along M and N all run at once: alone, sharing A's loads, or B's."""
    if not BUSY * device.sm_count <= down * across <= device.sm_count:
        return
    yield {}
    if -(-across // CLUSTER) * down <= cluster_sizes.clusters_at_once(CLUSTER, device.sm_count):
        yield {refinements.NUM_CTAS: CLUSTER}
    if down % 2 == 0:
        yield PAIR


def for_many_rows(config: Config) -> bool:
    """Whether a config walks over tiles in groups, as for more than `FEW_ROWS` rows of A where not all run at once."""
    return config.integer("GROUP_SIZE_M", 1) > 1


def fills_waves(problem: Problem, device: Device) -> bool:
    """Whether a tile for more than `FEW_ROWS` rows leaves every multiprocessor less to compute than others' tiles."""
    if not _is_many(problem):
        return False
    rows, columns = _best_tiles(problem, device)[0]
    return _busiest(rows, columns, problem, device) < any_width_space.least_sums(problem, device)


@functools.lru_cache(maxsize=1024)
def _best_tiles(problem: Problem, device: Device) -> tuple[tuple[int, int], ...]:
    """Rows and columns of the tiles that leave the busiest multiprocessor least to compute, the least first.

    More than that one stay where they leave it less than tiles of other kernels do.
    """
    wide = dtype.ITEMSIZE[problem.out_dtype] == 4  # which three warpgroups do not store
    found = list[tuple[float, int, int, int]]()
    for columns, (least, most) in _ROWS_OF_MANY.items():
        for rows in range(least, most + 1, UNIT):
            size, sums = rows * columns, _busiest(rows, columns, problem, device)
            if size >= min(_SMALL, sums / _WAVES) and not (wide and WARPS[columns] > 8):
                found.append((sums, -size, rows, columns))
    first, *near = sorted(found)[:_BEST]
    others = any_width_space.least_sums(problem, device)
    best = [first, *(each for each in near if each[0] < others and each[0] <= _NEAR * first[0])]
    return tuple((rows, columns) for _, _, rows, columns in best)


def _busiest(rows: int, columns: int, problem: Problem, device: Device) -> float:
    """Sums of the multiprocessor that computes the most tiles, as many as it would compute while it waits for loads."""
    slowed = ping_pong_model.slowed(columns, rows, exchanged(problem))
    return slowed * any_width_space.busiest(rows, columns, problem, device)


@rule("height", "the shape itself: whatever else a tile has is padding", reads=("BLOCK_SIZE_M",))
def _height(config: Config, problem: Problem, device: Device) -> str | None:
    if _is_many(problem):
        return None
    heights = {*(one["BLOCK_SIZE_M"] for one in tiles_at_once(problem, device))}
    if _fills_by_all_rows(problem, device):
        heights |= {*_heights_of_few(problem)}
    tried = " or ".join(map(str, sorted(heights)))
    return f"{config['BLOCK_SIZE_M']} rows: {tried} are tried" if config["BLOCK_SIZE_M"] not in heights else None


@rule("waves", "measured on an H200: docs/decisions.md, 146", reads=SIDES)
def _waves(config: Config, problem: Problem, device: Device) -> str | None:
    """Of tiles for many rows, keep those that leave every multiprocessor less to compute than others; or the best."""
    rows, columns = (config.integer(name) for name in SIDES)
    if not _is_many(problem) or (rows, columns) in (best := _best_tiles(problem, device)):
        return None
    if any(_alike(one, config, SIDES) for one in tiles_at_once(problem, device)):
        return None
    tried = " or ".join("x".join(map(str, each)) for each in best)
    return f"a tile of {rows}x{columns}: {tried} leaves the busiest multiprocessor less to compute"


@rule("halves", "measured on an H200: docs/decisions.md, 143")
def _halves(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if refinements.NUM_CTAS not in config or not any_width_space.in_halves(as_computed(config)):
        return None
    return f"{config['BLOCK_SIZE_M']}x{config['BLOCK_SIZE_N']} in clusters, which lost"


@rule("clusters", "measured on an H200: docs/lessons.md, Tiles of any height")
def _clusters(config: Config, problem: Problem, device: Device) -> str | None:
    """Keep clusters to tiles that have all of A's rows, fill half the device, and need no wave more in clusters.

    Fewer tiles than that leave room for the next launch's, which those of clusters do not take: at 64 tiles,
    72x4096x14336, clusters took 1.36 times as long as single blocks.
    """
    ctas = config.integer(refinements.NUM_CTAS, 1)
    if ctas == 1 or any(_alike(one, config, (*SIDES, *OPTIONS)) for one in tiles_at_once(problem, device)):
        return None
    if config.integer("BLOCK_SIZE_M") < problem.m or refinements.SHARE_B in config:
        return f"{config['BLOCK_SIZE_M']} rows of {problem.m}: only where all tiles run at once they share loads"
    count, at_once = tiles(config, problem), ctas * cluster_sizes.clusters_at_once(ctas, device.sm_count)
    if 2 * count <= device.sm_count:
        return f"clusters of {ctas}: {count} tiles leave room for the next launch's"
    if -(-count // at_once) > -(-count // device.sm_count):
        return f"clusters of {ctas}, {at_once} blocks at once: {count} tiles would take a wave more"
    return None


RULES = (
    tile_rules.parameters(_axes, OPTIONS),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/any_tile/any_width_space.py"),
    *ABLE,
    _height,
    _waves,
    _halves,
    _clusters,
)
