"""The search space of `any_height_ping_pong`: the heights of tiles that its model says are best, in several orders."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gemm.any_tile import any_width_space
from tuner.kernels.gemm.any_tile.any_height_tile import as_computed, ring_first, shared_bytes, stored, unserved
from tuner.kernels.gemm.hopper import ping_pong_model, resources
from tuner.kernels.gemm.hopper.ping_pong_space import FEWEST_ROWS
from tuner.kernels.space import tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem

NAME = "any_height_ping_pong"
COLUMNS = 128
"""Columns of tiles, which are the rows that a warpgroup multiplies."""
HEIGHTS = (*range(96, 209, 8),)
"""Rows of tiles, the sums of a thread."""
_BEST = 3
"""Heights that are tried, by the model. Of those measured, the best of these three took 0.01% longer than the best of
all for bfloat16, 0.6% for fp8 (benchmarks/results/ping-pong-heights-h200.json)."""
_GROUPS = (3, 16)
"""GROUP_SIZE_M: 3 was the fastest most often, and 8 lost 0.1% to the better of these (decision 148)."""
_STREAMED = 1.05
"""What narrow groups take over wide ones where tiles along M outnumber the multiprocessors: they read A again for every
three columns of tiles. 1.01 to 1.14 for 29 of 34 tiles (benchmarks/data/scattered-layouts-h200.db.xz)."""
_MOST_STAGES = 8
_WARPS = 8


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    return unserved(problem, device) or _too_small(problem)


def _too_small(problem: Problem) -> str | None:
    if problem.m < FEWEST_ROWS:
        return f"M is {problem.m}: it is for {FEWEST_ROWS} rows of A or more"
    return f"N is {problem.n}: a tile has {COLUMNS} columns" if problem.n < COLUMNS else None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(problem), RULES, expand=_expand)


def _axes(problem: Problem) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values, except that `_expand` finds GROUP_SIZE_M and num_stages."""
    return {
        "BLOCK_SIZE_M": HEIGHTS,
        "BLOCK_SIZE_N": (COLUMNS,),
        "BLOCK_SIZE_K": (resources.row_length(problem),),
        "num_warps": (_WARPS,),
        "GROUP_SIZE_M": (1,),
        "num_stages": (1,),
        "launch_pdl": (True,),
    }


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    inner = as_computed(config)
    # One warpgroup stores while the other multiplies: a second buffer gains more (results/ring-depths-h200.json).
    stages = any_width_space.deepest(inner, exchanged(problem), device, _MOST_STAGES, any_width_space.FEW_STAGES)
    widest = -(-problem.n // COLUMNS)
    for group in dict.fromkeys(min(group, widest) for group in _GROUPS):
        yield config.replace(num_stages=stages, GROUP_SIZE_M=group)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """How long a config takes, microseconds."""
    rows, group = config.integer("BLOCK_SIZE_M"), config.integer("GROUP_SIZE_M")
    streamed = group == _GROUPS[0] and -(-problem.m // rows) > device.sm_count
    return tile_us(rows, problem, device) * (_STREAMED if streamed else 1.0)


def tile_us(rows: int, problem: Problem, device: Device) -> float:
    """How long tiles of so many rows take, microseconds."""
    computed = exchanged(problem)
    us = ping_pong_model.estimate_us(COLUMNS, rows, computed, device)
    return us * ping_pong_model.slowed(COLUMNS, rows, computed)


@functools.lru_cache(maxsize=1024)
def best_heights(problem: Problem, device: Device) -> tuple[int, ...]:
    """The heights of tiles that the model says are best, the best first."""
    return tuple(sorted(HEIGHTS, key=lambda rows: (tile_us(rows, problem, device), -rows))[:_BEST])


@rule("shape", "kernels/gemm/any_tile/any_width_jit.py; compiled for sm_90: 208 sums a thread fit", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if (config["BLOCK_SIZE_N"], config["num_warps"]) != (COLUMNS, _WARPS):
        return f"{config['BLOCK_SIZE_N']} columns for {config['num_warps']} warps: {COLUMNS} for {_WARPS}"
    if config["BLOCK_SIZE_M"] not in HEIGHTS:
        return f"{config['BLOCK_SIZE_M']} rows: a multiple of 8 from {HEIGHTS[0]} to {HEIGHTS[-1]}"
    if config["BLOCK_SIZE_K"] != resources.row_length(problem):
        return f"BLOCK_SIZE_K is {config['BLOCK_SIZE_K']}: rows of {resources.ROW_BYTES} bytes"
    return "2 stages at least, to load while it multiplies" if config.integer("num_stages") < 2 else None


@rule("height", "measured on an H200: docs/decisions.md, 148", reads=("BLOCK_SIZE_M",))
def _height(config: Config, problem: Problem, device: Device) -> str | None:
    best = best_heights(problem, device)
    tried = ", ".join(map(str, best))
    return f"{config['BLOCK_SIZE_M']} rows: {tried} are tried" if config["BLOCK_SIZE_M"] not in best else None


RULES = (
    tile_rules.parameters(lambda problem, _: _axes(problem)),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/any_tile/any_width_space.py"),
    _shape,
    ring_first,
    stored,
    _height,
)
