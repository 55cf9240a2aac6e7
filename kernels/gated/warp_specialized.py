"""The `gated_warp_specialized` kernel: one warp loads, one or two warpgroups multiply gate and up. For Hopper."""

from __future__ import annotations

import functools
import math
from typing import Any

from tuner.hardware import device as devices
from tuner.hardware.device import Device, multiprocessors
from tuner.kernel.config import Config
from tuner.kernels.base import blocks, epilogue
from tuner.kernels.base.operands import placement
from tuner.kernels.base.program import spec_of
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.tile import Loop, Sides, tile_of
from tuner.kernels.gated import hopper_jit, launches
from tuner.kernels.gated.launches import GATED_LINEAR
from tuner.kernels.gated.operands import GatedOperands
from tuner.kernels.gated.space import MOST_SWAPPED_ROWS, as_computed
from tuner.kernels.gated.warp_specialized_space import (
    NAME,
    resident,
    shared_bytes,
    sides,
    space,
    supports_hopper,
)
from tuner.kernels.gemm.hopper import loader as hopper_loader
from tuner.kernels.gemm.hopper import output, resources
from tuner.kernels.gemm.hopper import tile as hopper_tile
from tuner.kernels.gemm.hopper.warp_specialized import Registers, laid_out, registers_of, with_layout
from tuner.kernels.gemm.spec import simplicity
from tuner.kernels.gemm.tma.spec import descriptor
from tuner.kernels.space import refinements
from tuner.launch.launch import TILE, Launch
from tuner.problem import Problem

VERSION = 1
_SAME = 0.05
"""Estimates that differ by less, in log time, are equal: on recorded landscapes of an H100 longer rows win then."""
_CROWDED = 1.25
"""How many times as long small tiles take where many programs wait for the same rows of a weight. Fitted, as are both
numbers below, on the kernel's 8,292 trials in benchmarks/data/shipped-h100.db.xz."""
_MANY = 8
"""Rows of tiles in a group beyond which programs are many."""
_LARGE = 128 * 256
"""Sums of a tile that is not small."""


def program(operands: GatedOperands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    a, out = operands.a, operands.out
    view = launches.view_of(operands)
    (tiles,), group, constants, options = _parts(view, config)
    block_m, block_n, block_k = (constants[name] for name in TILE)
    rows, columns = sides(config)
    rows, columns = rows // constants["WARPGROUPS"], columns // constants["EPILOGUE_PARTS"]
    arguments = (
        laid_out(a, block_m, block_k, 1),
        laid_out(operands.b, block_n // 2, block_k, 1),
        laid_out(operands.up, block_n // 2, block_k, 1),
        laid_out(out, *((columns, rows) if constants["SWAP_AB"] else (rows, columns)), 1),
        *view.shape,
        group,
    )
    # The launch's num_warps are those of the first multiplying warpgroup. Gluon adds the warps of other partitions.
    options = {**options, "num_warps": 4, "maxnreg": _registers(config).launched}
    del options["num_stages"]
    most = _resident(config, view.problem) * multiprocessors(a.device.index if a.is_cuda else None)
    return (Launch(hopper_jit.gated_kernel, (min(tiles, most),), arguments, constants, options),)


def _own(_view: launches.View, config: Config) -> dict[str, Any]:
    registers = _registers(config)
    return {
        "SWAP_AB": bool(config.get("SWAP_AB", False)),
        "EPILOGUE_PARTS": config.integer("EPILOGUE_PARTS", 1),
        "WARPGROUPS": resources.warpgroups(config),
        "LOADER_REGISTERS": registers.loader,
        "MULTIPLIER_REGISTERS": registers.multiplier,
    }


@functools.lru_cache(maxsize=1024)
def _registers(config: Config) -> Registers:
    (rows, columns), groups = sides(config), resources.warpgroups(config)
    return registers_of(groups, columns, 2 * rows * columns / (128 * groups))


@functools.lru_cache(maxsize=1024)
def _resident(config: Config, problem: Problem) -> int:
    """Programs of a multiprocessor."""
    return resident(config, problem, devices.KNOWN["sm_90"])


_parts = launches.parts_of(hopper_jit.gated_kernel, _own)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate of both products as one."""
    inner, computed = as_computed(config, problem)
    loop = Loop(by_tma=True, persistent=True, specialized=True, exchanged=inner is not config)
    tile = tile_of(Sides.of(inner), loop, computed, device)
    # It always lets the next kernel start late; configs of products say by an option whether they do.
    us = cost.of_tile(tile, {**inner, refinements.PDL_TRIGGER: refinements.AFTER_LAST_STEP}).us
    together = min(config.integer("GROUP_SIZE_M"), -(-problem.m // config.integer("BLOCK_SIZE_M")))
    return us * _CROWDED if together > _MANY and tile.rows * tile.width < _LARGE else us


def default_config(problem: Problem, device: Device) -> Config:
    """The config with the least estimated time; ties go to long rows where there are few, then to groups of 8 rows."""

    def estimated(config: Config) -> float:
        us = estimate_us(config, problem, device)
        return round(math.log(us) / _SAME) if problem.m <= MOST_SWAPPED_ROWS else us

    def ties(config: Config) -> tuple[int, ...]:
        return -config.integer("BLOCK_SIZE_K"), abs(config.integer("GROUP_SIZE_M") - 8)

    tried = space(problem, device)
    return tried.best(estimated, ties=ties) or tried.smallest()


SPEC = spec_of(
    GATED_LINEAR,
    NAME,
    VERSION,
    program,
    supports=supports_hopper,
    space=space,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    sources=(
        *(hopper_jit, hopper_loader, hopper_tile, output, launches, program, _own, blocks, epilogue),
        *(laid_out, with_layout, registers_of, descriptor, placement),
    ),
    simplicity=simplicity,
    runtime_parameters=("GROUP_SIZE_M",),
    precedence=lambda _problem, _device: 1,
)
