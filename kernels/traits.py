"""What of a config the calibration weighs beside the cost model's estimate: its traits, each one number.

Times are in log2 of microseconds, or of a time's share of `smooth_us`: of how long the longest of them takes where none
hides another entirely. Counts are in log2, what either holds or not is 0 or 1. Of a kernel that exchanges its operands
the config and the problem are as the device sees them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tuner import dtype as dtypes
from tuner.config import Config
from tuner.device import Device
from tuner.kernels import refinements, rules, stream_cost
from tuner.kernels.chips import chip_of
from tuner.problem import Problem

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


class _Grid(NamedTuple):
    """A tile's sides as the device sees it, how many there are, and what resides of them."""

    rows: int
    width: int
    length: int
    tiles_m: int
    tiles_n: int
    splits: int
    steps: int
    programs: int
    each: int
    resident: int
    ring: int
    loaded_rows: float


def of_tiles(config: Config, problem: Problem, device: Device, us: float, *, exchanged: bool) -> dict[str, float]:
    """Traits of a kernel of tiles.

    Args:
        config, problem: as the device sees them.
        device: where.
        us: the cost model's estimate.
        exchanged: whether the device computes the transposed output: B's columns are its rows then.
    """
    grid = _grid(config, problem, device)
    shares, smooth_us = _shares(config, problem, device, grid)
    log2 = math.log2
    trigger, stages = config.integer(refinements.PDL_TRIGGER), config.integer("num_stages", 1)
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), grid.tiles_m)
    again, weights = (grid.tiles_n, problem.m) if exchanged else (grid.tiles_m, problem.n)
    streamed = max(0.0, log2(weights * problem.k * dtypes.ITEMSIZE[problem.a_dtype] / _CACHED_BYTES))
    full = (grid.resident + 1) * grid.ring > device.shared_bytes + 1024 and 2 * grid.programs > device.sm_count
    ragged = -problem.n % grid.width / grid.width
    ctas = config.integer(refinements.NUM_CTAS, 1)
    return {
        "us": log2(smooth_us),
        "model": log2(us / smooth_us),
        **shares,
        "steps": log2(grid.steps),
        "wave_us": log2(grid.steps * _stage_bytes(grid, problem) / _INTAKE / chip_of(device).mhz),
        "tail": log2(grid.each * device.sm_count / grid.programs) if grid.programs > device.sm_count else 0.0,
        "filled": min(0.0, log2(grid.programs / device.sm_count)),
        "one_wave": float(grid.each == 1),
        "two_waves": float(grid.each == 2),
        "beside": float(grid.resident > 1),
        "full": float(full),
        "idle": full * max(0.0, device.sm_count / grid.programs - 1),
        "late": float(trigger == refinements.AFTER_LAST_STEP),
        "trigger": trigger / 8 - 0.7 if trigger else 0.0,
        "prefetch": float(refinements.PREFETCH_KIB in config),
        "rows": log2(grid.rows / 64),
        "width": log2(grid.width / 64),
        "width_off": log2(grid.width / 64) ** 2,
        "rest": float(grid.width != config.integer("BLOCK_SIZE_N")),
        "length": log2(grid.length / 64),
        "length_off": log2(grid.length / 128) ** 2,
        "warps": float(config.integer("num_warps") == 8),
        "ragged_m": -problem.m % grid.rows / grid.rows,
        "ragged_n": ragged,
        "run_ahead": ragged**2 * (grid.tiles_n > 1),
        "over_m": 1 - problem.m / (grid.tiles_m * grid.rows),
        "over_n": 1 - problem.n / (grid.tiles_n * grid.width),
        "ragged_k": 1 - problem.k / (grid.length * grid.splits * grid.steps),
        "apart": _apart(grid, group, exchanged=exchanged) if config.kernel != "swap_ab" else 0.0,
        "again": log2(again),
        "streamed_again": log2(again) * streamed,
        "once": float(again == 1 and exchanged),
        "cluster": float(ctas > 1),
        "large_cluster": float(ctas > 2),
        "share_b": float(bool(config.get(refinements.SHARE_B, False))),
        "stages": log2(stages),
        "parts": log2(config.integer("EPILOGUE_PARTS", 1)),
        "group": log2(group),
        "splits": log2(grid.splits),
        "ring": log2(grid.ring * min(grid.resident, grid.each) / device.shared_bytes),
        "streamed": max(0.0, log2(problem.bytes_moved / _CACHED_BYTES)),
        "short": max(0.0, log2(_SHORT_US / smooth_us)),
    }


def of_streams(config: Config, problem: Problem, device: Device, us: float) -> dict[str, float]:
    """Traits of `gemv`, a kernel without `tl.dot`; see `of_tiles`."""
    columns, length = config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K")
    splits, threads = config.integer("SPLIT_K", 1), device.warp_size * config.integer("num_warps")
    programs = -(-problem.n // columns) * splits
    resident = stream_cost.resident(config, problem, device)
    waves, log2 = programs / (device.sm_count * resident), math.log2
    size = dtypes.ITEMSIZE[problem.b_dtype]
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


def _grid(config: Config, problem: Problem, device: Device) -> _Grid:
    rows, columns, length = rules.tile(config)
    width = columns + config.integer("BLOCK_SIZE_N_REST")
    splits, warps = config.integer("SPLIT_K", 1), config.integer("num_warps")
    tiles_m, tiles_n = -(-problem.m // rows), -(-problem.n // width)
    programs = tiles_m * tiles_n * splits
    each = -(-programs // device.sm_count)
    stage = length * (rows + width) * dtypes.ITEMSIZE[problem.a_dtype]
    ring = config.integer("num_stages", 1) * stage + 1024
    threads = device.warp_size * warps
    fitting = (device.shared_bytes + 1024) // ring, 65_536 // (rows * width + _THREAD_REGISTERS * threads), each
    most = {"cluster_k": 1, "warp_specialized": 2 if warps == 4 else 1}.get(config.kernel, each)
    ctas = config.integer(refinements.NUM_CTAS, 1)
    shared = width if config.get(refinements.SHARE_B, False) else rows
    return _Grid(
        rows,
        width,
        length,
        tiles_m,
        tiles_n,
        splits,
        -(-problem.k // (length * splits)),
        programs,
        each,
        max(1, min(*fitting, most)),
        ring,
        rows + width - shared * (1 - 1 / ctas),
    )


def _stage_bytes(grid: _Grid, problem: Problem) -> int:
    return grid.length * (grid.rows + grid.width) * dtypes.ITEMSIZE[problem.a_dtype]


def _shares(config: Config, problem: Problem, device: Device, grid: _Grid) -> tuple[dict[str, float], float]:
    """Of what a launch waits for, each one's share of `smooth_us` in log2; and that."""
    chip, size = chip_of(device), dtypes.ITEMSIZE[problem.a_dtype]
    per_us = 1 / chip.mhz
    product = grid.rows * grid.width * grid.length / (chip.macs * 2 / size)
    operands = grid.rows / 64 * (grid.length * size / 32) * (_OPERAND_CYCLES + grid.width / 4)
    in_turn = -(-grid.each // grid.resident) * grid.steps
    # A ring's stage is free again when the step after its own is under way; a warp of its own sees that at once.
    ahead = max(0.6, config.integer("num_stages", 1) - 1 - (0.0 if config.kernel == "warp_specialized" else 0.5))
    times = {
        "memory": problem.bytes_moved / chip.memory,
        "products": grid.each * grid.steps * max(product, operands) * per_us,
        "intake": grid.each * grid.steps * grid.loaded_rows * grid.length * size / _INTAKE * per_us,
        "l2": grid.tiles_m * grid.tiles_n * grid.loaded_rows * problem.k * size / _L2 * per_us,
        "latency": in_turn * _LATENCY_CYCLES / ahead * per_us,
        "barriers": in_turn * _STEP_CYCLES * per_us,
        "store": grid.each * grid.rows * grid.width * size / _STORE_BYTES * per_us,
    }
    waited = times["latency"] + times["barriers"]
    longest = sum(time_us**_SHARPNESS for time_us in (*(times[name] for name in _HIDING), waited)) ** (1 / _SHARPNESS)
    smooth_us = _START_US + longest
    if grid.splits > 1 and config.kernel != "cluster_k":
        sums = (grid.splits + 1) * grid.rows * grid.width * 4
        smooth_us += (_SPLIT_CYCLES + sums / _PARTIAL_BYTES) * per_us
    return {name: math.log2(max(_LEAST_SHARE, time_us / smooth_us)) for name, time_us in times.items()}, smooth_us


_HIDING = ("memory", "products", "intake", "l2")


def _apart(grid: _Grid, group: int, *, exchanged: bool) -> float:
    """How far apart programs run that read the same columns of B, log2: neighbours share them in the nearer L2."""
    if exchanged:
        return math.log2(group) if grid.tiles_n > 1 else 0.0
    return math.log2(grid.tiles_m / group)
