"""What the kernels that load through TMA descriptors have in common, and the search space of `tma` itself."""

from __future__ import annotations

from collections.abc import Mapping

from tuner import dtype as dtypes
from tuner.config import Config, Value
from tuner.device import Device
from tuner.kernels import pointer_space, rules, tile_rules
from tuner.problem import Problem
from tuner.space import Rule, SearchSpace

NAME = "tma"
DEEPEST = 12
_BARRIER_BYTES = 8
_BARRIERS_OF_TCGEN05 = 16


def supports(problem: Problem, device: Device) -> str | None:
    """Why a kernel that loads through TMA cannot serve a problem on a device, or None."""
    if reason := pointer_space.supports(problem, device):
        return reason
    if not device.is_interpreter and (device.vendor != "nvidia" or device.capability < 90):
        return f"no {device.arch}: TMA needs sm_90 or newer"
    if not problem.aligned:
        return "not aligned: TMA takes addresses, leading strides and contiguous extents of multiples of 16 bytes"
    if not rules.uses_tensor_cores(problem) and not device.is_interpreter:
        return "float32 by plain multiply-adds: these are the limit there, not loads"
    return None


def supports_tiles(problem: Problem, device: Device) -> str | None:
    """The same for kernels whose tiles have 64 rows of A or more; exchanged or split tiles are other kernels' work."""
    if reason := supports(problem, device):
        return reason
    if problem.m > 32 or device.is_interpreter:
        return None
    return f"M is {problem.m}: a tile has 64 rows, more than half of them would be padding"


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `tma`."""
    return SearchSpace(NAME, problem, device, axes(device), RULES, pointer_space.canonical)


def axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values on a device."""
    if device.is_interpreter:
        tile: Mapping[str, tuple[Value, ...]] = dict.fromkeys(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), (32,))
        return {**tile, "GROUP_SIZE_M": (1,), "num_stages": (1,), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_M": (64, 128, 256),
        "BLOCK_SIZE_N": (16, 32, 64, 128, 256),
        "BLOCK_SIZE_K": (32, 64, 128, 256),
        "GROUP_SIZE_M": tile_rules.GROUPS,
        "num_stages": tuple(range(1, DEEPEST + 1)),
        "num_warps": (4, 8),
        **tile_rules.overlap(device),
    }


def default_config(problem: Problem, device: Device) -> Config:
    """The tile that fills the device best, with the deepest pipeline that fits."""
    if device.is_interpreter:
        return Config(NAME, **{name: values[0] for name, values in axes(device).items()})
    tried = space(problem, device)
    return min(tried.configs(), key=lambda config: _cost(config, problem, device))


def _cost(config: Config, problem: Problem, device: Device) -> tuple[float, ...]:
    """Rounds of tiles over the device, each as long as its tile is large and oblong."""
    block_m, block_n, block_k = rules.tile(config)
    tiles_m, tiles_n, _ = rules.tile_counts(config, problem)
    rounds = -(-tiles_m * tiles_n // device.sm_count)
    loaded = 64 * (block_m + block_n)
    return (rounds * (block_m * block_n + loaded), -config.integer("num_stages") * block_k, config.integer("num_warps"))


def pipeline_bytes(config: Config, problem: Problem, device: Device, *, exchanged: bool = False) -> int:
    """Shared memory of a pipeline of TMA loads: its stages, a barrier for each, and two more for tcgen05.

    wgmma and tcgen05 read operands from shared memory while the next loads land: num_stages buffers; mma.sync copies
    them to registers first: one less. Source: the kernels that tests/compile compiles.

    Args:
        config: of a kernel that loads through TMA.
        problem: what is computed.
        device: where.
        exchanged: whether the kernel computes the transposed output, B's rows in place of A's.
    """
    stages = config.integer("num_stages")
    buffers = stages if reads_shared(config, problem, device, exchanged=exchanged) else max(1, stages - 1)
    barriers = _BARRIER_BYTES * buffers + (_BARRIERS_OF_TCGEN05 if device.capability >= 100 else 0)
    return buffers * rules.tile_bytes(config, problem) + barriers


def reads_shared(config: Config, problem: Problem, device: Device, *, exchanged: bool = False) -> bool:
    """Whether the tile is multiplied by wgmma or tcgen05."""
    rows = config.integer("BLOCK_SIZE_N" if exchanged else "BLOCK_SIZE_M")
    return rules.reads_shared(rows, config.integer("num_warps"), problem, device)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block of `tma`: the pipeline, or the tile on its way out if that takes more.

    With float32 operands the two do not share memory. Source: exact on the kernels that tests/compile compiles; up to
    1 KiB more where an operand is transposed on its way through registers.
    """
    block_m, block_n, _ = rules.tile(config)
    stored = block_m * block_n * dtypes.ITEMSIZE[problem.out_dtype]
    pipeline = pipeline_bytes(config, problem, device)
    return pipeline + stored if problem.a_dtype == "float32" else max(pipeline, stored)


def depths(stage_bytes: int, other_bytes: int, steps: int, device: Device) -> set[int]:
    """Pipelines worth trying: the deepest that fits a multiprocessor, one less, and the deepest that fits it twice.

    Args:
        stage_bytes: of one stage, with its barrier.
        other_bytes: of shared memory that is no stage.
        steps: along K: a deeper pipeline is never full.
        device: where.
    """
    alone = (device.shared_bytes - other_bytes) // stage_bytes
    twice = ((device.shared_bytes - 1024) // 2 - other_bytes) // stage_bytes
    shallowest = min(2, alone, steps)
    return {max(1, shallowest, min(DEEPEST, steps, depth)) for depth in (alone, alone - 1, twice)}


def _too_much_shared(config: Config, problem: Problem, device: Device) -> str | None:
    needed = shared_bytes(config, problem, device)
    return f"{needed} B, a block has {device.shared_bytes}" if needed > device.shared_bytes else None


def _depth(config: Config, problem: Problem, device: Device) -> str | None:
    if device.is_interpreter:
        return None
    stage = rules.tile_bytes(config, problem) + _BARRIER_BYTES
    block_m, block_n, _ = rules.tile(config)
    other = block_m * block_n * 4 if problem.a_dtype == "float32" else 0
    tried = depths(stage, _BARRIERS_OF_TCGEN05 + other, rules.tile_counts(config, problem)[2], device)
    return depth_outside(config, tried)


def depth_outside(config: Config, tried: set[int]) -> str | None:
    """The reason of a config whose num_stages is none of those tried."""
    stages = config.integer("num_stages")
    return None if stages in tried else f"{stages} stages, {', '.join(map(str, sorted(tried)))} are tried"


def without_tensor_cores(config: Config, problem: Problem, device: Device) -> str | None:
    """The reason of a tile too small for wgmma and tcgen05."""
    if device.is_interpreter or reads_shared(config, problem, device):
        return None
    return f"{config.integer('BLOCK_SIZE_M')} rows and {config.integer('num_warps')} warps are too few for wgmma"


TILE_RULES = (
    tile_rules.DOT_SIZE,
    tile_rules.REGISTERS,
    tile_rules.IDLE_WARPS,
    tile_rules.PADDING,
    tile_rules.BEYOND_K,
    tile_rules.SHORT_ROWS,
    tile_rules.WAVES,
    tile_rules.OBLONG,
    tile_rules.GROUP,
)
"""Rules that hold for a tile however it is loaded."""

RULES = (
    tile_rules.parameters(axes, tile_rules.OPTIONAL),
    Rule("shared memory", "kernels/tma_space.py, shared_bytes; tests/compile", _too_much_shared, fatal=True),
    Rule("tensor cores", "PTX ISA, wgmma.mma_async: a warpgroup and 64 rows", without_tensor_cores),
    Rule("depth", "measured on an H200: 7 or 8 stages of small tiles gain 1 to 4%", _depth),
    *TILE_RULES,
)
