"""The `simt` kernel: float32 by plain multiply-adds, without bank conflicts, on any NVIDIA GPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernels.base.operands import Operands, placement
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.model import Candidates
from tuner.kernels.cost.tile import Loop, Sides, tile_of
from tuner.kernels.gemm import launches, splitting, sums
from tuner.kernels.gemm.hopper import output
from tuner.kernels.gemm.simt import jit
from tuner.kernels.gemm.simt.space import (
    LENGTHS,
    NAME,
    WHOLE_VECTOR,
    overlaps,
    shared_bytes,
    space,
    supports,
    warps_along_m,
)
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.space import tile_resources
from tuner.launch.launch import Launch
from tuner.problem import Problem

VERSION = 1
_STAGES = 3
"""num_stages of a default: in trials of random products on an H200 four took 1.06 times as long, six 1.1 (not kept)."""
_GROUP = 8
"""GROUP_SIZE_M of a default with several waves of tiles."""


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    view = launches.view_of(operands)
    grid, group, constants, options = _parts(view, config)
    memory = launches.split_memory(grid, constants, operands.a)
    tensors = (operands.a, operands.b, operands.out, operands.bias, *memory)
    options = {**options}
    del options["num_stages"]
    return (Launch(jit.simt_kernel, grid, (*tensors, *view.shape, *view.strides, group), constants, options),)


def _own(_view: launches.View, config: Config) -> dict[str, Any]:
    rows, columns, _ = tile_resources.tile(config)
    warps = config.integer("num_warps")
    return {"WARPS": warps, "WARPS_M": warps_along_m(rows, columns, warps)}


_parts = launches.parts_of(jit.simt_kernel, _own)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate."""
    return cost.terms(config, problem, device, _LOOP).us


_LOOP = Loop(by_tma=False, simt=True)


def default_config(problem: Problem, device: Device) -> Config:
    """The config with the least estimated time, of a short pipeline, and of long steps where copies are of 16 bytes."""
    long = min(tile_resources.vectors(problem)) == WHOLE_VECTOR and problem.k > min(LENGTHS)
    tried = space(problem, device).narrowed(BLOCK_SIZE_K=(max(LENGTHS) if long else min(LENGTHS),))

    def tiles() -> Iterator[Candidates]:
        for point in tried.points():
            tile = tile_of(Sides.of(point), _LOOP, problem, device)
            group = _GROUP if tile.tiles_m * tile.tiles_n > device.sm_count else 1
            given = {"num_stages": _STAGES, "GROUP_SIZE_M": group}
            yield Candidates(point, tile, splitting.splits_of(point, problem, device), functools.partial(_split, given))

    near = {config: one.us for config, one in cost.near_least(tiles()).items()}
    estimated = functools.partial(estimate_us, problem=problem, device=device)
    found = tried.best(estimated, ties=ties, among=near)
    if found is None or not device.features.pdl:
        return found or tried.smallest()
    return found.replace(launch_pdl=overlaps(found, problem, device))


def _split(given: Mapping[str, Value], splits: int) -> tuple[dict[str, Value]]:
    return ({**given, "SPLIT_K": splits},)


def ties(config: Config) -> tuple[int, ...]:
    """Of equal estimates the fewest splits come first, then large tiles, and short pipelines."""
    rows, columns, _ = tile_resources.tile(config)
    return config.integer("SPLIT_K"), -rows * columns, config.integer("num_stages")


SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    sources=sources_of(jit, output, program, _own, warps_along_m, placement),
    runtime_parameters=("GROUP_SIZE_M", "SPLIT_K"),
    order=sums.of_tile,
)
