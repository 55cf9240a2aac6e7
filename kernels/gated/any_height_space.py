"""The search space of `gated_any_height`: tiles with any multiple of 8 rows of x.

Of few rows a tile has all, or an equal share, and one or two warpgroups share it. Of more rows it has as many as fill
the device's waves best, by a model, and two warpgroups take tiles in turn.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gated.any_height_model import modelled_us
from tuner.kernels.gated.operands import product
from tuner.kernels.gated.warp_specialized_space import supports_hopper
from tuner.kernels.gemm.any_tile import any_width_space
from tuner.kernels.gemm.any_tile.any_height_tile import CLUSTER, PAIR, as_computed
from tuner.kernels.gemm.hopper import cluster_sizes, resources
from tuner.kernels.gemm.hopper.tile import TEAMS
from tuner.kernels.space import refinements, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem

NAME = "gated_any_height"
HEIGHTS = (*range(64, 209, 8),)
"""Rows of tiles: the sums of a thread, of which more would spill."""
_SHAPES = ((128, 4), (256, 8))
"""Columns of gate and up together, and warps that multiply them, of few rows."""
IN_TURN = (128, 8)
"""The same of warpgroups that take tiles in turn."""
_FEWEST_ROWS = 65
"""Rows of x that it serves. Of fewer, tiles of `gated_warp_specialized` have little padding."""
_FEW_ROWS = 256
"""Rows of x up to which tiles have an equal share of them."""
BEST = 3
"""How many heights are tried for more rows."""
_GROUPS = (2, 12)
"""GROUP_SIZE_M: tiles along the weights that follow each other before the next rows of x; of few rows the first."""
_WIDE_ROWS = 13
"""Tiles along x from which on wide groups are the default."""
_BUSY = 0.7
"""The share of the multiprocessors that tiles of few rows keep busy if any do."""
_FULL = 0.8
"""The share of them that its smallest tiles have to keep busy for a default: of fewer, smaller tiles of other kernels
were faster. From 0.75 to 0.8 is the best of both for the 138 problems of the first study and before (not kept)."""
_MOST_STAGES = 12
_OPTIONS = (refinements.NUM_CTAS, refinements.SHARE_B)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := supports_hopper(problem, device) or cluster_sizes.untried():
        return reason
    return f"M is {problem.m}: it is for {_FEWEST_ROWS} rows of x or more" if problem.m < _FEWEST_ROWS else None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(problem, device), RULES, expand=_expand, options=_OPTIONS)


def _axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:  # noqa: ARG001
    """Every parameter's values, except that `_expand` finds GROUP_SIZE_M, num_stages and clusters."""
    return {
        "BLOCK_SIZE_M": HEIGHTS,
        "BLOCK_SIZE_N": (128, 256),
        "num_warps": (4, 8),
        "BLOCK_SIZE_K": (resources.row_length(problem),),
        "GROUP_SIZE_M": (1,),
        "num_stages": (1,),
        "launch_pdl": (True,),
    }


def teams(config: Config) -> int:
    """How many warpgroups take tiles in turn; 1 if all share each tile."""
    return TEAMS.value if (config["BLOCK_SIZE_N"], config["num_warps"]) == IN_TURN else 1


def fills(problem: Problem, device: Device) -> bool:
    """Whether its smallest tiles keep the device busy."""
    return _most_tiles(problem) >= _FULL * device.sm_count


def _most_tiles(problem: Problem) -> int:
    down, across = tiles(Config(NAME, BLOCK_SIZE_M=HEIGHTS[0], BLOCK_SIZE_N=_SHAPES[0][0]), problem)
    return down * across


@functools.lru_cache(maxsize=4096)
def both(problem: Problem) -> Problem:
    """The product of both weights as one with x, as the device computes it."""
    return exchanged(product(problem))


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """An upper bound on a block's shared memory, as of `any_width`."""
    return any_width_space.shared_bytes(as_computed(config), both(problem), device)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """How long a config takes, microseconds, in whatever order of tiles."""
    return modelled_us(as_computed(config), both(problem), device, in_turn=teams(config) > 1)


def ties(config: Config, problem: Problem) -> tuple[int, ...]:
    """Of equal estimates the tallest tiles come first, and the groups that many or few tiles along x ask for."""
    group = config.integer("GROUP_SIZE_M")
    wide = -(-problem.m // config.integer("BLOCK_SIZE_M")) >= _WIDE_ROWS
    return -config.integer("BLOCK_SIZE_M"), -group if wide else group


def tiles(config: Config, problem: Problem) -> tuple[int, int]:
    """Tiles along the rows of x, and along the columns of the output."""
    rows, columns = config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N")
    return -(-problem.m // rows), -(-2 * problem.n // columns)


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile with the deepest ring that fits: of few rows alone and in clusters, else in two orders."""
    _, across = tiles(config, problem)
    few = problem.m <= _FEW_ROWS
    options: tuple[Mapping[str, Value], ...] = ({}, {refinements.NUM_CTAS: CLUSTER}, PAIR)
    for kind in (config.replace(**each) for each in options[: None if few else 1]):
        stages = any_width_space.deepest(as_computed(kind), both(problem), device, _MOST_STAGES)
        for group in dict.fromkeys(min(group, across) for group in (_GROUPS[:1] if few else _GROUPS)):
            yield kind.replace(num_stages=stages, GROUP_SIZE_M=group)


def shares(problem: Problem) -> tuple[int, ...]:
    """The heights of tiles that have all of few rows of x, or an equal share."""
    counts = range(1, -(-problem.m // HEIGHTS[0]) + 1)
    found = {max(HEIGHTS[0], -(-problem.m // (8 * count)) * 8) for count in counts}
    return tuple(sorted(found & {*HEIGHTS}))


@functools.lru_cache(maxsize=1024)
def best_heights(problem: Problem, device: Device) -> tuple[int, ...]:
    """The heights of tiles for more rows that the model says are best, the best first."""

    def us(rows: int) -> float:
        config = Config(NAME, BLOCK_SIZE_M=rows, BLOCK_SIZE_N=IN_TURN[0], num_warps=IN_TURN[1])
        return estimate_us(config, problem, device)

    return tuple(sorted(HEIGHTS, key=lambda rows: (us(rows), -rows))[:BEST])


@rule("shape", "kernels/gemm/any_tile/any_width_jit.py; compiled for sm_90: 208 sums a thread fit", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows, columns, warps = (config.integer(name) for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps"))
    if (columns, warps) not in (*_SHAPES, IN_TURN):
        return f"{columns} columns for {warps} warps: 128 for 4 or 8, 256 for 8"
    if rows not in HEIGHTS:
        return f"{rows} rows: a multiple of 8 from {HEIGHTS[0]} to {HEIGHTS[-1]}"
    if (length := config.integer("BLOCK_SIZE_K")) != resources.row_length(problem):
        return f"BLOCK_SIZE_K is {length}: rows of {resources.ROW_BYTES} bytes"
    return "2 stages at least, to load while it multiplies" if config.integer("num_stages") < 2 else None


@rule("clusters", "kernels/gemm/any_tile/any_width_jit.py; cuOccupancyMaxActiveClusters", fatal=True)
def _clusters(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    kind = {name: config[name] for name in _OPTIONS if name in config}
    if not kind:
        return None
    if teams(config) > 1:
        return "clusters of warpgroups that take tiles in turn: the kernel has none"
    if kind not in ({refinements.NUM_CTAS: CLUSTER}, PAIR):
        return f"clusters of {config.get(refinements.NUM_CTAS)}: {CLUSTER} that share x, or 2 that share the weights"
    room = cluster_sizes.room(config.integer(refinements.NUM_CTAS), device)
    return None if room else f"{device.sm_count} multiprocessors may have no cluster of so many in one GPC"


@rule("worth a cluster", "measured on an H200: docs/decisions.md, 167")
def _worth_a_cluster(config: Config, problem: Problem, device: Device) -> str | None:
    """Keep four that share x to tiles that have all its rows and run at once, and pairs to even numbers along x."""
    if refinements.NUM_CTAS not in config:
        return None
    down, across = tiles(config, problem)
    if refinements.SHARE_B in config:
        return f"pairs of {down} tiles along x: one would be none" if down % 2 else None
    most = CLUSTER * cluster_sizes.clusters_at_once(CLUSTER, device.sm_count)
    if down == 1 and CLUSTER <= across <= most:
        return None
    return f"clusters of {CLUSTER} for {down} x {across} tiles: for one along x and {CLUSTER} to {most} others"


@rule("ring", "kernels/gemm/any_tile/any_width_jit.py: Triton places the largest allocation first", fatal=True)
def _ring_first(config: Config, problem: Problem, device: Device) -> str | None:
    return any_width_space.ring_not_first(as_computed(config), both(problem), device)


@rule("stored", "kernels/gemm/any_tile/any_width.py: it stores through buffers alone", fatal=True)
def _stored(config: Config, problem: Problem, device: Device) -> str | None:
    return any_width_space.without_buffers(as_computed(config), both(problem), device)


@rule("turns", "measured on an H200: docs/decisions.md, 167", reads=("BLOCK_SIZE_N", "num_warps"))
def _turns(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    few = problem.m <= _FEW_ROWS
    if few == (teams(config) == 1):
        return None
    return f"{problem.m} rows of x: warpgroups {'share tiles' if few else 'take tiles in turn'}"


@rule("height", "measured on an H200: docs/decisions.md, 167", reads=("BLOCK_SIZE_M",))
def _height(config: Config, problem: Problem, device: Device) -> str | None:
    tried = shares(problem) if problem.m <= _FEW_ROWS else best_heights(problem, device)
    listed = ", ".join(map(str, tried))
    return f"{config['BLOCK_SIZE_M']} rows: {listed} are tried" if config["BLOCK_SIZE_M"] not in tried else None


@rule("busy", "measured on an H200: docs/decisions.md, 167", reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N"))
def _busy(config: Config, problem: Problem, device: Device) -> str | None:
    """Reject tiles of few rows that leave much of the device idle where smaller ones do not."""
    if problem.m > _FEW_ROWS:
        return None
    down, across = tiles(config, problem)
    least = min(_BUSY * device.sm_count, _most_tiles(problem))
    return f"{down * across} tiles, others keep {least:.0f} multiprocessors busy" if down * across < least else None


RULES = (
    tile_rules.parameters(_axes, _OPTIONS),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/any_tile/any_width_space.py"),
    _shape,
    _clusters,
    _ring_first,
    _stored,
    _turns,
    _height,
    _busy,
    _worth_a_cluster,
)
