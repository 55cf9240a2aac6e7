"""The search space of `any_height`: tiles that all of A's rows, or half of them, fill but for less than 16."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gemm.hopper import any_width_space, cluster_sizes
from tuner.kernels.gemm.hopper.resources import tiles
from tuner.kernels.space import refinements, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem

NAME = "any_height"
_FEWEST_ROWS, _MOST_ROWS = 65, any_width_space.EXCHANGED_ROWS
"""Rows of A that it serves. For fewer, `cluster_k` and `swap_ab` were as fast or faster: docs/lessons.md."""
_HALVED = 128
"""Rows of A beyond which two tiles with half of them each are tried, too."""
_STEP = 16
_HEIGHTS = (*range(80, _MOST_ROWS + 1, _STEP),)
"""Rows of tiles."""
_WARPS = {columns: columns // 16 for columns in any_width_space.EXCHANGED}
"""Warps that multiply, by columns of a tile."""
_MOST_SUMS = {1: 128, 2: 128, 3: 104}
"""The most sums of a multiplying thread, by the number of warpgroups: its registers are 216 to 248, 232 or 160."""
_LENGTH = 64
_CLUSTER = 4
"""Blocks of a cluster."""
_MOST_STAGES = 12
_IDLE_SHARE = 1 / 3
"""With tiles for fewer of the multiprocessors, other kernels split sums along K."""
_OPTIONS = (refinements.NUM_CTAS,)
_SIDES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N")
_AXES: Mapping[str, tuple[Value, ...]] = {
    "BLOCK_SIZE_M": _HEIGHTS,
    "BLOCK_SIZE_N": tuple(_WARPS),
    "num_warps": tuple(sorted({*_WARPS.values()})),
    "BLOCK_SIZE_K": (_LENGTH,),
    "GROUP_SIZE_M": (1,),
    "num_stages": (1,),
    "launch_pdl": (True,),
}
"""Every parameter's values, except that `_expand` finds the number of stages."""


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := any_width_space.unlike(problem, device):
        return reason
    if not _FEWEST_ROWS <= problem.m <= _MOST_ROWS:
        return f"M is {problem.m}: it is for {_FEWEST_ROWS} to {_MOST_ROWS} rows of A"
    most = -(-problem.n // min(_WARPS))
    few = f"N is {problem.n}: its {most} smallest tiles leave most of the device idle"
    return few if most < _IDLE_SHARE * device.sm_count else None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _AXES, RULES, expand=_expand, options=_OPTIONS)


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile with the deepest ring that fits, alone and in clusters."""
    for tile in (config, config.replace(num_ctas=_CLUSTER)):
        inner = as_computed(tile).replace(num_stages=1)
        yield tile.replace(num_stages=any_width_space.deepest(inner, exchanged(problem), device, _MOST_STAGES))


@functools.lru_cache(maxsize=4096)
def as_computed(config: Config) -> Config:
    """The config of `any_width` that computes the transposed output: blocks of a cluster lie along its rows then."""
    computed = {**dict(config.pairs), "BLOCK_SIZE_M": config["BLOCK_SIZE_N"], "BLOCK_SIZE_N": config["BLOCK_SIZE_M"]}
    if refinements.NUM_CTAS in config:
        computed[refinements.SHARE_B] = True
    return Config(config.kernel, **computed)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """An upper bound on a block's shared memory, as of `any_width`."""
    return any_width_space.shared_bytes(as_computed(config), exchanged(problem), device)


@rule("shape", "kernels/gemm/hopper/any_width_jit.py; PTX ISA, wgmma.mma_async", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows, columns, warps = (config.integer(name) for name in (*_SIDES, "num_warps"))
    if _WARPS.get(columns) != warps:
        return f"{columns} columns for {warps} warps: 64 for 4, 128 for 8, 192 for 12"
    if config.integer(refinements.NUM_CTAS, _CLUSTER) != _CLUSTER:
        return f"clusters of {config[refinements.NUM_CTAS]}: only clusters of {_CLUSTER} were run so far"
    if refinements.NUM_CTAS in config and not cluster_sizes.room(_CLUSTER, device):
        return f"clusters of {_CLUSTER}: {device.sm_count} multiprocessors may have none of so many in one GPC"
    return any_width_space.no_step(rows, "rows", config)


@rule("ring", "kernels/gemm/hopper/any_width_jit.py: Triton places the largest allocation first", fatal=True)
def _ring_first(config: Config, problem: Problem, device: Device) -> str | None:
    return any_width_space.ring_not_first(as_computed(config), exchanged(problem), device)


@rule("stored by a cluster", "kernels/gemm/hopper/any_width.py: only its first block would store", fatal=True)
def _stored(config: Config, problem: Problem, device: Device) -> str | None:
    return any_width_space.stored_by_one(as_computed(config), exchanged(problem), device)


@rule("wide output", "compiled for sm_90, as for any_width", fatal=True)
def _wide_output(config: Config, problem: Problem, device: Device) -> str | None:
    return any_width_space.too_wide_output(as_computed(config), exchanged(problem), device)


@rule("registers", "compiled for sm_90", fatal=True, reads=(*_SIDES, "num_warps"))
def _sums(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    return any_width_space.too_many_sums(config, _MOST_SUMS)


@rule("height", "the shape itself: whatever else a tile has is padding", reads=("BLOCK_SIZE_M",))
def _height(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows = problem.m, *((-(-problem.m // 2),) if problem.m > _HALVED else ())
    heights = [-(-each // _STEP) * _STEP for each in rows]
    tried = " or ".join(map(str, heights))
    return f"{config['BLOCK_SIZE_M']} rows: {tried} are tried" if config["BLOCK_SIZE_M"] not in heights else None


@rule("clusters", "measured on an H200: docs/lessons.md, Tiles of any height")
def _clusters(config: Config, problem: Problem, device: Device) -> str | None:
    """Keep clusters to tiles that have all of A's rows, fill half the device, and need no wave more in clusters.

    Fewer tiles than that leave room for the next launch's, which those of clusters do not take: at 64 tiles,
    72x4096x14336, clusters took 1.36 times as long as single blocks.
    """
    ctas = config.integer(refinements.NUM_CTAS, 1)
    if ctas == 1:
        return None
    if any_width_space.in_halves(as_computed(config)):
        return f"{config['BLOCK_SIZE_M']}x{config['BLOCK_SIZE_N']} in clusters, which lost: docs/decisions.md, 143"
    if config.integer("BLOCK_SIZE_M") < problem.m:
        return f"{config['BLOCK_SIZE_M']} rows of {problem.m}: neighbours along N would share one of two tiles' rows"
    count, at_once = tiles(config, problem), ctas * cluster_sizes.clusters_at_once(ctas, device.sm_count)
    if 2 * count <= device.sm_count:
        return f"clusters of {ctas}: {count} tiles leave room for the next launch's"
    if -(-count // at_once) > -(-count // device.sm_count):
        return f"clusters of {ctas}, {at_once} blocks at once: {count} tiles would take a wave more"
    return None


RULES = (
    tile_rules.parameters(lambda *_: _AXES, _OPTIONS),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/hopper/any_width_space.py"),
    _shape,
    _ring_first,
    _stored,
    _wide_output,
    _sums,
    _height,
    _clusters,
)
