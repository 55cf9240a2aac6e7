"""What the kernels that load through TMA descriptors have in common, and the search space of `tma` itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem, dtype

NAME = "tma"
DEEPEST = 12
_SHORTEST = 32
"""The least BLOCK_SIZE_K. Beyond the end of K TMA loads zeros, which take no device memory."""
_BARRIER_BYTES = 8
_ALIGNMENT = 16
"""Alignment of an array of barriers in shared memory, bytes."""


def supports(problem: Problem, device: Device) -> str | None:
    """Why a kernel that loads through TMA cannot serve a problem on a device, or None."""
    if reason := pointer_space.supports(problem, device):
        return reason
    if not device.is_interpreter and not device.features.tma:
        return f"no {device.arch}: TMA needs sm_90 or newer"
    if not problem.aligned:
        return "not aligned: TMA takes addresses, leading strides and contiguous extents of multiples of 16 bytes"
    if not tile_resources.uses_tensor_cores(problem) and not device.is_interpreter:
        return "float32 by plain multiply-adds: these are the limit there, not loads"
    return None


def supports_tiles(problem: Problem, device: Device) -> str | None:
    """Why a kernel whose tiles have 64 rows of A or more cannot serve a problem on a device, or None."""
    if reason := supports(problem, device):
        return reason
    if device.is_interpreter:
        return None
    if not tile_resources.reads_shared(64, 64, 4, problem, device):
        return (
            f"no {problem.a_dtype} on {device.arch}: it is multiplied from registers there, which pointers feed as well"
        )
    if problem.m > 32:
        return None
    return f"M is {problem.m}: a tile has 64 rows, more than half of them would be padding"


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `tma`."""
    return SearchSpace(NAME, problem, device, axes(device), RULES, pointer_space.canonical, expand)


def axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values on a device, except that `expand` finds num_stages for each tile."""
    if device.is_interpreter:
        tile: Mapping[str, tuple[Value, ...]] = dict.fromkeys(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), (32,))
        return {**tile, "GROUP_SIZE_M": (1,), "num_stages": (1,), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_M": (64, 128, 256),
        "BLOCK_SIZE_N": (16, 32, 64, 128, 256),
        "BLOCK_SIZE_K": (_SHORTEST, 64, 128, 256),
        "GROUP_SIZE_M": tile_rules.GROUPS,
        "num_stages": (1,),
        "num_warps": (4, 8),
        **tile_rules.overlap(device),
    }


def default_config(problem: Problem, device: Device) -> Config:
    """The tile that fills the device best, with the deepest pipeline that fits."""
    tried = space(problem, device)
    return tried.best(lambda config: _cost(config, problem, device)) or tried.smallest()


def _cost(config: Config, problem: Problem, device: Device) -> tuple[float, ...]:
    """Rounds of tiles over the device, each as long as its tile is large and oblong."""
    block_m, block_n, block_k = tile_resources.tile(config)
    tiles_m, tiles_n, _ = tile_resources.tile_counts(config, problem)
    rounds = -(-tiles_m * tiles_n // device.sm_count)
    loaded = 64 * (block_m + block_n)
    depth = config.integer("num_stages") * block_k
    group = abs(config.integer("GROUP_SIZE_M", 1) - 8)
    return rounds * (block_m * block_n + loaded), -depth, config.integer("num_warps"), group


def expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile with every pipeline worth trying."""
    if device.is_interpreter:
        yield config
        return
    block_m, block_n, _ = tile_resources.tile(config)
    stored = block_m * block_n * 4 if stored_apart(config, problem, device) else 0
    stage = tile_resources.tile_bytes(config, problem) + _BARRIER_BYTES * barrier_arrays(problem)
    other = pipeline_bytes(config, problem, device) - stage + stored + 2 * _ALIGNMENT
    steps = tile_resources.tile_counts(config, problem)[2]
    for stages in sorted(depths(stage, other, steps, device)):
        yield config.replace(num_stages=stages)


def pipeline_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of a pipeline of TMA loads in bytes: its stages and their barriers.

    Source: exact for 16-bit operands on the kernels that tests/compile compiles, and an upper bound for others, which
    may be transposed through registers.

    Args:
        config: a config of a kernel that loads through TMA.
        problem: the problem as the kernel sees it.
        device: the device.
    """
    buffers, (block_m, block_n, block_k) = tile_resources.buffers(config, problem, device), tile_resources.tile(config)
    a_bytes = dtype.ITEMSIZE[problem.a_dtype] * block_k * block_m
    b_bytes = dtype.ITEMSIZE[problem.b_dtype] * block_k * block_n
    asynchronous = tile_resources.asynchronous(config, problem, device)
    barriers, aligned = _BARRIER_BYTES * buffers, barrier_bytes(buffers)
    # Loads that are awaited together share barriers.
    arrays = barrier_arrays(problem)
    if dtype.is_fp8(problem.a_dtype) and not asynchronous:
        arrays = max(arrays, 2)  # each operand is awaited separately, to be upcast to float16
    taken = buffers * (a_bytes + b_bytes) + (arrays - 1) * aligned
    if device.features.tcgen05 and buffers == config.integer("num_stages"):
        taken += aligned + _ALIGNMENT
    else:
        taken += barriers
    return taken + _transposed_bytes(a_bytes, b_bytes, problem, device)


def barrier_bytes(buffers: int) -> int:
    """Shared memory of an array of barriers, one for each buffer, that another array follows, in bytes."""
    return -(-_BARRIER_BYTES * buffers // _ALIGNMENT) * _ALIGNMENT


def barrier_arrays(problem: Problem) -> int:
    """Number of arrays of barriers, each with one barrier per stage."""
    converted = dtype.ITEMSIZE[problem.a_dtype] != 2 and problem.layout != "nt"
    return 2 if problem.layout[0] == "t" or converted or problem.precision == "tf32x3" else 1


def _transposed_bytes(a_bytes: int, b_bytes: int, problem: Problem, device: Device) -> int:
    """Additional shared memory of float32 operands for copies, transposed for tcgen05 or truncated for tf32x3."""
    if problem.a_dtype != "float32":
        return 0
    taken = 3 * a_bytes if problem.precision == "tf32x3" else 0
    if device.features.tcgen05:
        taken += 2 * a_bytes * (problem.layout[0] == "t") + 2 * b_bytes * (problem.layout[1] == "n")
    return taken


def stores_sums(problem: Problem) -> bool:
    """Whether sums are stored as they are: no rounding, bias or activation, and no scales but those of the steps."""
    unscaled = problem.scaling in ("none", "block")
    return problem.out_dtype in ("float32", "int32") and problem.epilogue == "none" and unscaled


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block of `tma`: the pipeline, or the tile that is stored through it if that takes more.

    On Hopper, sums that are stored as they are move to shared memory before the pipeline's last buffer is free, so the
    two add up.
    """
    block_m, block_n, _ = tile_resources.tile(config)
    stored = block_m * block_n * dtype.ITEMSIZE[problem.out_dtype]
    pipeline = pipeline_bytes(config, problem, device)
    return pipeline + stored if stored_apart(config, problem, device) else max(pipeline, stored)


def stored_apart(config: Config, problem: Problem, device: Device) -> bool:
    """Whether the tile that is stored has its own shared memory, apart from the pipeline's: see `shared_bytes`."""
    whole = config.integer("SPLIT_K", 1) == 1 and stores_sums(problem)
    # Block scales are applied in registers, so there the sums are on every architecture.
    return whole and (problem.scaling == "block" or tile_resources.uses_wgmma(config, problem, device))


def depths(stage_bytes: int, other_bytes: int, steps: int, device: Device) -> set[int]:
    """Pipeline depths worth trying: the deepest that fits a multiprocessor, one less, and the deepest that fits twice.

    Small tiles gain from depth as long as the loop fills the pipeline. Two resident programs hide each other's ends.

    Args:
        stage_bytes: bytes of one stage, with its barrier.
        other_bytes: shared memory besides the stages, in bytes.
        steps: steps along K. A deeper pipeline is never full.
        device: the device.
    """
    alone = (device.shared_bytes - other_bytes) // stage_bytes
    twice = ((device.shared_bytes - 1024) // 2 - other_bytes) // stage_bytes
    shallowest = min(2, alone, steps)
    return {max(1, shallowest, min(DEEPEST, steps, depth)) for depth in (alone, alone - 1, (alone + twice) // 2, twice)}


def deepest(shared_bytes: Callable[[Config], int], config: Config, device: Device) -> int:
    """The most stages of a config, up to `DEEPEST`, that fit a block of the device; 0 if not even one fits."""
    fitting = range(DEEPEST, 0, -1)
    return next((n for n in fitting if shared_bytes(config.replace(num_stages=n)) <= device.shared_bytes), 0)


@rule(
    "tensor cores",
    "PTX ISA, wgmma.mma_async: a warpgroup and 64 rows",
    reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps"),
)
def tensor_cores(config: Config, problem: Problem, device: Device) -> str | None:
    """Why a tile is too small for wgmma and tcgen05, or None."""
    if device.is_interpreter or tile_resources.asynchronous(config, problem, device):
        return None
    return f"{config.integer('BLOCK_SIZE_M')} rows and {config.integer('num_warps')} warps are too few for wgmma"


TILE_RULES = (
    tile_rules.dot_size,
    tile_rules.registers,
    tile_rules.idle_warps,
    tile_rules.padding,
    tile_rules.beyond_k_from(lambda _: _SHORTEST),
    tile_rules.short_rows,
    tile_rules.waves,
    tile_rules.oblong,
    tile_rules.group,
)
"""Rules that hold for a tile whether it is loaded through pointers or descriptors."""

RULES = (
    tile_rules.parameters(lambda _, device: axes(device)),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/tma/space.py"),
    tensor_cores,
    *TILE_RULES,
)
