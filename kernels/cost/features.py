"""The features of a config that the calibration weighs: the cost model's terms, and what its tile and pipeline are.

Times are log2 of microseconds, terms log2 of their share of the estimate. Counts are log2, what either holds or not is
0 or 1. For a kernel that exchanges its operands the config and the problem are as the device sees them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.cost import stream
from tuner.kernels.cost.terms import Terms
from tuner.kernels.cost.tile import CACHED_SHARE, Sides, memory_bytes_per_us
from tuner.kernels.space import refinements
from tuner.problem import Problem, dtype

_SHARES = ("memory", "again", "products", "intake", "latency", "barriers", "ramp", "store", "splits")
"""The terms whose share of the estimate is a feature."""
_LEAST_SHARE = 2.0**-4
_SHORT_US = 8.0
"""A launch shorter than this is one of latencies."""


def of_tiles(terms: Terms, config: Config, problem: Problem, device: Device, *, exchanged: bool) -> dict[str, float]:
    """Features of a kernel of tiles.

    Args:
        terms: the cost model's.
        config, problem: as the device sees them.
        device: where.
        exchanged: whether the device computes the transposed output: B's columns are its rows then.
    """
    log2, sides, us = math.log2, Sides.of(config), terms.us
    splits, stages = config.integer("SPLIT_K", 1), config.integer("num_stages", 1)
    programs, each, trigger = terms.programs, terms.each, config.integer(refinements.PDL_TRIGGER)
    return {
        **_of_sides(sides, problem, device, exchanged),
        "exchanged": float(exchanged),
        "ragged_m": terms.beyond_m / sides.rows,
        "ragged_n": terms.beyond_n / sides.width,
        "over_m": terms.beyond_m / (problem.m + terms.beyond_m),
        "over_n": terms.beyond_n / (problem.n + terms.beyond_n),
        "us": log2(us),
        **{name: log2(max(_LEAST_SHARE, getattr(terms, name) / us)) for name in _SHARES},
        "steps": log2(terms.steps),
        "tail": log2(each * device.sm_count / programs) if programs > device.sm_count else 0.0,
        "filled": min(0.0, log2(programs / device.sm_count)),
        "one_wave": float(each == 1),
        "two_waves": float(each == 2),
        "beside": float(terms.resident > 1),
        "full": float(terms.full),
        "idle": terms.full * max(0.0, device.sm_count / programs - 1),
        "late": float(trigger == refinements.AFTER_LAST_STEP),
        "trigger": trigger / 8 - 0.7 if trigger else 0.0,
        "prefetch": float(refinements.PREFETCH_KIB in config),
        "ragged_k": 1 - problem.k / (sides.length * splits * terms.steps),
        "apart": _apart(config, sides, problem, exchanged=exchanged),
        "stages": log2(stages),
        "parts": log2(config.integer("EPILOGUE_PARTS", 1)),
        "group": log2(max(1, config.integer("GROUP_SIZE_M", 1))),
        "split_k": log2(splits),
        "ring": log2(terms.shared_bytes * terms.resident / device.shared_bytes),
        "short": max(0.0, log2(_SHORT_US / us)),
    }


def of_streams(config: Config, problem: Problem, device: Device, us: float) -> dict[str, float]:
    """Features of `gemv`, a kernel without `tl.dot`; `us` is the cost model's estimate."""
    columns, length = config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K")
    splits, threads = config.integer("SPLIT_K", 1), device.warp_size * config.integer("num_warps")
    programs = -(-problem.n // columns) * splits
    resident = stream.resident(config, problem, device)
    waves, log2 = programs / (device.sm_count * resident), math.log2
    size = dtype.ITEMSIZE[problem.b_dtype]
    together = min(resident, programs / device.sm_count)
    return {
        "us": log2(us),
        "memory": log2(problem.bytes_moved / memory_bytes_per_us(device) / us),
        "waves": log2(max(waves, 1 / 16)),
        "last": max(0.0, math.ceil(waves) / waves - 1) if waves > 1 else 0.0,
        "steps": log2(-(-problem.k // (splits * length))),
        "uneven": -(-problem.k // length) * length / problem.k - 1,
        "warps": log2(config.integer("num_warps")),
        "length": log2(length),
        "columns": log2(columns),
        "splits": log2(splits),
        "held": log2(columns * length / threads),
        "registers": log2(stream.registers(config, problem, threads)),
        "in_flight": log2(together * columns * length * size / 1024),
        "program_kib": log2(columns * problem.k / splits * size / 1024),
        "rows": log2(problem.m),
        "prefetch": float(refinements.PREFETCH_KIB in config),
        "trigger": float(refinements.PDL_TRIGGER in config),
    }


@functools.lru_cache(maxsize=256)
def _of_sides(sides: Sides, problem: Problem, device: Device, exchanged: bool) -> Mapping[str, float]:
    """What a tile's pipelines and splits share; remembered for formulas, which ask for one tile at a time."""
    log2, size = math.log2, dtype.ITEMSIZE[problem.a_dtype]
    rows, _, rest, length, warps, ctas, share_b = sides
    width, cached_bytes = sides.width, CACHED_SHARE * device.l2_bytes
    tiles_m, tiles_n = -(-problem.m // rows), -(-problem.n // width)
    again, weights = (tiles_n, problem.m) if exchanged else (tiles_m, problem.n)
    streamed = max(0.0, log2(weights * problem.k * size / cached_bytes))
    return {
        "rows": log2(rows / 64),
        "width": log2(width / 64),
        "rest": float(rest != 0),
        "length": log2(length / 64),
        "warps": float(warps == 8),
        "again_rows": log2(again),
        "streamed_again": log2(again) * streamed,
        "once": float(again == 1 and exchanged),
        "cluster": float(ctas > 1),
        "large_cluster": float(ctas > 2),
        "share_b": float(share_b),
        "streamed": max(0.0, log2(problem.bytes_moved / cached_bytes)),
    }


def _apart(config: Config, sides: Sides, problem: Problem, *, exchanged: bool) -> float:
    """How far apart programs run that read the same columns of B, log2: neighbours share them in the nearer L2."""
    if config.kernel == "swap_ab":
        return 0.0
    tiles_m, tiles_n = -(-problem.m // sides.rows), -(-problem.n // sides.width)
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), tiles_m)
    if exchanged:
        return math.log2(group) if tiles_n > 1 else 0.0
    return math.log2(tiles_m / group)
