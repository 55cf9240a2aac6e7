"""What of a config the calibration weighs beside the cost model's estimate: its traits, each one number.

Times are in log2 of microseconds, or of a time's share of `smooth_us`: of how long the longest of them takes where none
hides another entirely. Counts are in log2, what either holds or not is 0 or 1. Of a kernel that exchanges its operands
the config and the problem are as the device sees them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.cost import stream as stream_cost
from tuner.kernels.cost.chips import chip_of
from tuner.kernels.cost.tile import Sides
from tuner.kernels.space import refinements
from tuner.problem import Problem, dtype

_INTAKE = 64.0
"""Bytes a cycle that one multiprocessor takes in from the L2 (A100 white paper: 5,120 of all, over 80)."""
_L2 = 5000.0
"""The same of all of them."""
_OPERAND_CYCLES = 18.0
_LATENCY_CYCLES = 1300.0
_STEP_CYCLES = 100.0
_SPLIT_CYCLES = 4500.0
_PARTIAL_BYTES = 16.0
_STORE_BYTES = 8.0
"""As in `cost`, rounded: what these miss the calibration adds."""
_START_US = 1.5
_SHARPNESS = 4
_CACHED_BYTES = 50e6
_LEAST_SHARE = 2.0**-4
_THREAD_REGISTERS = 50
_SHORT_US = 8.0
"""A launch shorter than this is one of latencies."""


class _Tile(NamedTuple):
    """What of a config follows from its tile, whatever its pipeline, its splits and the order of tiles.

    Attributes:
        mhz: of the device.
        sums: of a tile.
        tiles_m, tiles_n: how many there are, as the device sees them.
        steps: along K, of all splits together.
        stage_bytes: of a stage of the pipeline.
        beside: programs that a multiprocessor has registers and, by the kernel's own word, room for.
        product_us, intake_us: one step's multiply-adds, and what it takes in.
        store_us: a tile on its way out.
        memory_us, l2_us: the whole launch's, of each byte once, and of what tiles read.
        traits: those that follow from it.
    """

    mhz: float
    sums: int
    tiles_m: int
    tiles_n: int
    steps: int
    stage_bytes: int
    beside: int
    product_us: float
    intake_us: float
    store_us: float
    memory_us: float
    l2_us: float
    traits: Mapping[str, float]


def of_tiles(config: Config, problem: Problem, device: Device, us: float, *, exchanged: bool) -> dict[str, float]:
    """Traits of a kernel of tiles.

    Args:
        config, problem: as the device sees them.
        device: where.
        us: the cost model's estimate.
        exchanged: whether the device computes the transposed output: B's columns are its rows then.
    """
    tile = _tile(Sides.of(config), config.kernel, problem, device, exchanged)
    log2 = math.log2
    splits, stages = config.integer("SPLIT_K", 1), config.integer("num_stages", 1)
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), tile.tiles_m)
    trigger = config.integer(refinements.PDL_TRIGGER)
    steps, programs = -(-tile.steps // splits), tile.tiles_m * tile.tiles_n * splits
    each = -(-programs // device.sm_count)
    ring = stages * tile.stage_bytes + 1024
    resident = max(1, min((device.shared_bytes + 1024) // ring, tile.beside, each))
    times = _times(config, tile, each, steps, -(-each // resident) * steps)
    smooth_us = _START_US + _longest(times)
    if splits > 1 and config.kernel != "cluster_k":
        smooth_us += (_SPLIT_CYCLES + (splits + 1) * tile.sums * 4 / _PARTIAL_BYTES) / tile.mhz
    full = (resident + 1) * ring > device.shared_bytes + 1024 and 2 * programs > device.sm_count
    return {
        **tile.traits,
        "us": log2(smooth_us),
        "model": log2(us / smooth_us),
        **{name: log2(max(_LEAST_SHARE, time_us / smooth_us)) for name, time_us in times.items()},
        "steps": log2(steps),
        "wave_us": log2(steps * tile.stage_bytes / _INTAKE / tile.mhz),
        "tail": log2(each * device.sm_count / programs) if programs > device.sm_count else 0.0,
        "filled": min(0.0, log2(programs / device.sm_count)),
        "one_wave": float(each == 1),
        "two_waves": float(each == 2),
        "beside": float(resident > 1),
        "full": float(full),
        "idle": full * max(0.0, device.sm_count / programs - 1),
        "late": float(trigger == refinements.AFTER_LAST_STEP),
        "trigger": trigger / 8 - 0.7 if trigger else 0.0,
        "prefetch": float(refinements.PREFETCH_KIB in config),
        "ragged_k": 1 - problem.k / (config.integer("BLOCK_SIZE_K") * splits * steps),
        "apart": _apart(tile, group, exchanged=exchanged) if config.kernel != "swap_ab" else 0.0,
        "stages": log2(stages),
        "parts": log2(config.integer("EPILOGUE_PARTS", 1)),
        "group": log2(group),
        "splits": log2(splits),
        "ring": log2(ring * min(resident, each) / device.shared_bytes),
        "short": max(0.0, log2(_SHORT_US / smooth_us)),
    }


def of_streams(config: Config, problem: Problem, device: Device, us: float) -> dict[str, float]:
    """Traits of `gemv`, a kernel without `tl.dot`; see `of_tiles`."""
    columns, length = config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K")
    splits, threads = config.integer("SPLIT_K", 1), device.warp_size * config.integer("num_warps")
    programs = -(-problem.n // columns) * splits
    resident = stream_cost.resident(config, problem, device)
    waves, log2 = programs / (device.sm_count * resident), math.log2
    size = dtype.ITEMSIZE[problem.b_dtype]
    together = min(resident, programs / device.sm_count)
    return {
        "us": log2(us),
        "memory": log2(problem.bytes_moved / chip_of(device).memory / us),
        "waves": log2(max(waves, 1 / 16)),
        "last": max(0.0, math.ceil(waves) / waves - 1) if waves > 1 else 0.0,
        "steps": log2(-(-problem.k // (splits * length))),
        "uneven": -(-problem.k // length) * length / problem.k - 1,
        "warps": log2(config.integer("num_warps")),
        "length": log2(length),
        "columns": log2(columns),
        "splits": log2(splits),
        "held": log2(columns * length / threads),
        "registers": log2(stream_cost.registers(config, problem, threads)),
        "in_flight": log2(together * columns * length * size / 1024),
        "program_kib": log2(columns * problem.k / splits * size / 1024),
        "rows": log2(problem.m),
        "prefetch": float(refinements.PREFETCH_KIB in config),
        "trigger": float(refinements.PDL_TRIGGER in config),
    }


@functools.lru_cache(maxsize=256)
def _tile(sides: Sides, kernel: str, problem: Problem, device: Device, exchanged: bool) -> _Tile:
    """A tile's part, which its pipelines and splits share; remembered for the formula, which asks of one at a time."""
    rows, _, _, length, warps, ctas, share_b = sides
    chip, size, width = chip_of(device), dtype.ITEMSIZE[problem.a_dtype], sides.width
    tiles_m, tiles_n = -(-problem.m // rows), -(-problem.n // width)
    product = rows * width * length / (chip.macs * 2 / size)
    operands = rows / 64 * (length * size / 32) * (_OPERAND_CYCLES + width / 4)
    loaded_rows = rows + width - (width if share_b else rows) * (1 - 1 / ctas)
    registers = 65_536 // (rows * width + _THREAD_REGISTERS * device.warp_size * warps)
    most = {"cluster_k": 1, "warp_specialized": 2 if warps == 4 else 1}.get(kernel, registers)
    return _Tile(
        mhz=chip.mhz,
        sums=rows * width,
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        steps=-(-problem.k // length),
        stage_bytes=length * (rows + width) * size,
        beside=min(registers, most),
        product_us=max(product, operands) / chip.mhz,
        intake_us=loaded_rows * length * size / _INTAKE / chip.mhz,
        store_us=rows * width * size / _STORE_BYTES / chip.mhz,
        memory_us=problem.bytes_moved / chip.memory,
        l2_us=tiles_m * tiles_n * loaded_rows * problem.k * size / _L2 / chip.mhz,
        traits=_of_sides(sides, problem, tiles_m, tiles_n, exchanged=exchanged),
    )


def _of_sides(sides: Sides, problem: Problem, tiles_m: int, tiles_n: int, *, exchanged: bool) -> dict[str, float]:
    log2, size = math.log2, dtype.ITEMSIZE[problem.a_dtype]
    rows, _, rest, length, warps, ctas, share_b = sides
    width = sides.width
    again, weights = (tiles_n, problem.m) if exchanged else (tiles_m, problem.n)
    streamed = max(0.0, log2(weights * problem.k * size / _CACHED_BYTES))
    ragged = -problem.n % width / width
    return {
        "rows": log2(rows / 64),
        "width": log2(width / 64),
        "width_off": log2(width / 64) ** 2,
        "rest": float(rest != 0),
        "length": log2(length / 64),
        "length_off": log2(length / 128) ** 2,
        "warps": float(warps == 8),
        "ragged_m": -problem.m % rows / rows,
        "ragged_n": ragged,
        "run_ahead": ragged**2 * (tiles_n > 1),
        "over_m": 1 - problem.m / (tiles_m * rows),
        "over_n": 1 - problem.n / (tiles_n * width),
        "again": log2(again),
        "streamed_again": log2(again) * streamed,
        "once": float(again == 1 and exchanged),
        "cluster": float(ctas > 1),
        "large_cluster": float(ctas > 2),
        "share_b": float(share_b),
        "streamed": max(0.0, log2(problem.bytes_moved / _CACHED_BYTES)),
    }


def _times(config: Config, tile: _Tile, each: int, steps: int, in_turn: int) -> dict[str, float]:
    """What a launch waits for, microseconds.

    Args:
        config, tile: of the launch.
        each: programs of the fullest multiprocessor.
        steps: along K, of each.
        in_turn: steps that a multiprocessor takes one after the other.
    """
    # A ring's stage is free again when the step after its own is under way; a warp of its own sees that at once.
    ahead = max(0.6, config.integer("num_stages", 1) - 1 - (0.0 if config.kernel == "warp_specialized" else 0.5))
    return {
        "memory": tile.memory_us,
        "products": each * steps * tile.product_us,
        "intake": each * steps * tile.intake_us,
        "l2": tile.l2_us,
        "latency": in_turn * _LATENCY_CYCLES / ahead / tile.mhz,
        "barriers": in_turn * _STEP_CYCLES / tile.mhz,
        "store": each * tile.store_us,
    }


def _longest(times: Mapping[str, float]) -> float:
    """The longest of what hides each other, microseconds, or more where several are nearly as long."""
    hiding = times["memory"], times["products"], times["intake"], times["l2"], times["latency"] + times["barriers"]
    longest: float = sum([time_us**_SHARPNESS for time_us in hiding]) ** (1 / _SHARPNESS)
    return longest


def _apart(tile: _Tile, group: int, *, exchanged: bool) -> float:
    """How far apart programs run that read the same columns of B, log2: neighbours share them in the nearer L2."""
    if exchanged:
        return math.log2(group) if tile.tiles_n > 1 else 0.0
    return math.log2(tile.tiles_m / group)
