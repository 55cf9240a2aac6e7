"""The search space of `block_scaled_warp_specialized`: tiles, the ring's depth, and the parts in which C is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import SCALE_GROUP
from tuner.kernels.gemm.hopper.resources import OTHER_BYTES, elsewhere, warpgroups
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.kernels.space.tile_rules import SIDES
from tuner.problem import Problem, dtype

NAME = "block_scaled_warp_specialized"
WGMMA_ROWS = 64
"""Rows that a warpgroup multiplies, and has shared memory for, whether the tile has as many or not."""
_ROWS = (8, 16, 32, 64, 128)
"""Rows of A in a tile."""
_COLUMNS = (64, 128)
"""Columns of B in a tile: all of them have the same scale."""
_PARTS = {64: (1,), 128: (2, 4)}
"""The numbers of parts in which a warpgroup stores its rows, by the tile's columns.

Two parts of 64 columns leave room for 5 stages of 128x128, four parts for 6.
"""
_FEWEST_STAGES = 3
_SCALES_AHEAD = 32
"""Scales of B that a stage has room for: 128 bytes, the alignment that TMA requires in shared memory."""


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if problem.scaling != "block":
        return f"scaling is {problem.scaling!r}: it takes block scales"
    if reason := elsewhere(device) or tma_space.supports(problem.unscaled(), device):
        return reason
    if problem.layout != "nt":
        return f"{problem.a_dtype} in layout {problem.layout}: wgmma reads such operands along K alone"
    if 2 * problem.k <= SCALE_GROUP:
        return f"K is {problem.k}: a stage along K would be more than half empty, it takes {SCALE_GROUP // 2 + 1}"
    return None if problem.n >= min(_COLUMNS) else f"N is {problem.n}: a tile has {min(_COLUMNS)} columns"


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(problem, device), RULES, expand=_expand)


def _axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:  # noqa: ARG001
    """Every parameter's values, except that `_expand` finds those that follow from a tile."""
    return {
        "BLOCK_SIZE_M": _ROWS,
        "BLOCK_SIZE_N": _COLUMNS,
        "BLOCK_SIZE_K": (SCALE_GROUP,),
        "num_warps": (4, 8),
        "GROUP_SIZE_M": (1,),
        "EPILOGUE_PARTS": (1,),
        "num_stages": (1,),
        "launch_pdl": (True,),
    }


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile with the deepest ring that fits, for every number of parts and order of tiles worth trying."""
    rows = -(-problem.m // config.integer("BLOCK_SIZE_M"))
    for parts in _PARTS[config.integer("BLOCK_SIZE_N")]:
        divided = config.replace(EPILOGUE_PARTS=parts)
        other = shared_bytes(divided.replace(num_stages=0), problem, device)
        deepest = min(tma_space.DEEPEST, (device.shared_bytes - other) // _stage_bytes(config))
        for group in dict.fromkeys(min(group, rows) for group in (1, 4, 16)):
            yield divided.replace(num_stages=deepest, GROUP_SIZE_M=group)


def tiles(config: Config, problem: Problem) -> int:
    """Tiles of the output."""
    return -(-problem.m // config.integer("BLOCK_SIZE_M")) * -(-problem.n // config.integer("BLOCK_SIZE_N"))


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:  # noqa: ARG001
    """An upper bound on a block's shared memory: the ring, its barriers, and the buffers through which C is stored."""
    parts = config.integer("EPILOGUE_PARTS", 1)
    stored = WGMMA_ROWS * warpgroups(config) * config.integer("BLOCK_SIZE_N") // parts * min(2, parts)
    out_bytes = stored * dtype.ITEMSIZE[problem.out_dtype]
    return config.integer("num_stages") * _stage_bytes(config) + out_bytes + OTHER_BYTES


def _stage_bytes(config: Config) -> int:
    """Bytes of one stage of the ring: operands of one byte, float32 scales and two barriers."""
    rows = WGMMA_ROWS * warpgroups(config)
    return (rows + config.integer("BLOCK_SIZE_N")) * SCALE_GROUP + 4 * (rows + _SCALES_AHEAD) + 16


@rule("shape", "kernels/gemm/block_scaled/hopper_jit.py", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    """Why the kernel does not support a config's shape, or None."""
    rows, columns, parts = (config.integer(name) for name in (*SIDES, "EPILOGUE_PARTS"))
    if rows not in _ROWS or columns not in _COLUMNS:
        return f"a tile of {rows}x{columns}: 8 to 128 rows, and 64 or 128 columns, which have one scale"
    if config.integer("BLOCK_SIZE_K") != SCALE_GROUP:
        return f"BLOCK_SIZE_K is {config['BLOCK_SIZE_K']}, a scale is for {SCALE_GROUP}"
    if parts not in (1, 2, 4):
        return f"{parts} parts of {columns} columns: 1, 2 or 4"
    return "2 stages at least, to load while it multiplies" if config.integer("num_stages") < 2 else None


@rule("rows", "PTX ISA, wgmma.mma_async: 64 rows a warpgroup", fatal=True, reads=("BLOCK_SIZE_M", "num_warps"))
def _rows(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows, warps = config.integer("BLOCK_SIZE_M"), config.integer("num_warps")
    if warps != (8 if rows > WGMMA_ROWS else 4):
        return f"{warps} warps for {rows} rows: 8 multiply 128 rows, 4 multiply up to 64"
    if rows < WGMMA_ROWS and problem.m > rows:
        return f"BLOCK_SIZE_M is {rows}, {problem.m} rows of A: a tile of fewer than {WGMMA_ROWS} has all of them"
    return None


@rule("padding", "the shape itself: the rest of such a tile is masked", reads=SIDES)
def _padding(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows, columns = config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N")
    covers_m = max(min(_ROWS), tile_resources.next_power_of_two(problem.m))
    covers_n = tile_resources.next_power_of_two(problem.n)
    if rows > covers_m:
        return f"BLOCK_SIZE_M is {rows}, {covers_m} covers M"
    return f"BLOCK_SIZE_N is {columns}, {covers_n} covers N" if columns > covers_n else None


@rule("thin", "NVIDIA, Matrix Multiplication Background: reuse grows with the tile", reads=SIDES)
def _thin(config: Config, problem: Problem, device: Device) -> str | None:
    """Reject small tiles if larger ones still fill the device many times over, one warpgroup if they do so twice."""
    rows, columns = config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N")
    count, largest = tiles(config, problem), min(128, tile_resources.next_power_of_two(problem.m)) * max(_COLUMNS)
    if count > 8 * device.sm_count and rows * columns < largest:
        return f"{count} tiles of {rows}x{columns}: a larger one loads each operand less often"
    large = tiles(config.replace(BLOCK_SIZE_M=max(_ROWS), BLOCK_SIZE_N=max(_COLUMNS)), problem)
    if rows < max(_ROWS) < problem.m and large >= 2 * device.sm_count:
        return f"{rows} rows, {large} tiles of {max(_ROWS)}x{max(_COLUMNS)}: these ask less of the L2"
    return None


@rule("ring", "the shape of what the space offers: the deepest ring that fits")
def _ring(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    stages = config.integer("num_stages")
    return f"{stages} stages: {_FEWEST_STAGES} hide a load behind two steps" if stages < _FEWEST_STAGES else None


RULES = (
    tile_rules.parameters(_axes),
    _shape,
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/block_scaled/hopper_space.py"),
    _rows,
    _padding,
    _thin,
    _ring,
)
