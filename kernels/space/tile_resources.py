"""The resources that a tile of a `tl.dot` kernel takes: the formulas behind the search spaces' rules."""

from __future__ import annotations

import functools
import math

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.problem import Problem, dtype

MOST_ELEMENTS = 1 << 20
"""The most elements of a tile, Triton's TRITON_MAX_TENSOR_NUMEL."""
MOST_THREADS = 1024
"""The most threads of a block, on NVIDIA and AMD.

Source: CUDA C++ Programming Guide, technical specifications; HIP documents the same limit.
"""


def next_power_of_two(size: int) -> int:
    """The smallest power of two not below `size` (at least 1)."""
    return 1 << (size - 1).bit_length()


def tile(config: Config) -> tuple[int, int, int]:
    """(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K)."""
    return config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K")


def shortest_k(problem: Problem) -> int:
    """The smallest BLOCK_SIZE_K: `tl.dot` needs 32 for 8-bit operands; for others, the search space starts at 16.

    Source: `min_dot_size` of Triton's NVIDIA backend, 3.6 to 3.9.
    """
    return 32 if dtype.ITEMSIZE[problem.a_dtype] == 1 else 16


def uses_tensor_cores(problem: Problem) -> bool:
    """Whether `tl.dot` of these operands becomes a matrix instruction, as it does except in full float32."""
    return problem.precision != "ieee"


def suits_wgmma(problem: Problem) -> bool:
    """Whether tensor cores multiply operands that are stored as wgmma takes them: along K, all but 16-bit ones."""
    return uses_tensor_cores(problem) and (dtype.ITEMSIZE[problem.a_dtype] == 2 or problem.layout == "nt")


def through_registers(problem: Problem) -> bool:
    """Whether one of two 32-bit operands does not run along K: wgmma reads it from registers alone, as its A."""
    return uses_tensor_cores(problem) and dtype.ITEMSIZE[problem.a_dtype] == 4 and problem.layout in ("nn", "tt")


def asynchronous(config: Config, problem: Problem, device: Device) -> bool:
    """Whether a config's `tl.dot` reads its operands from shared memory: see `reads_shared`."""
    block_m, block_n, _ = tile(config)
    return reads_shared(block_m, block_n, config.integer("num_warps"), problem, device)


def reads_shared(block_m: int, block_n: int, warps: int, problem: Problem, device: Device) -> bool:
    """Whether `tl.dot` becomes wgmma or tcgen05, which read their operands from shared memory.

    They need at least 64 rows, 16 columns and four warps. Source: `getMMAVersionSafe` and `supportMMA` of Triton's
    AccelerateMatmul pass, confirmed in PTX: neither appears with 8 columns, and int8 becomes wgmma but never tcgen05.
    Triton 3.9 differs in these two cases, see `buffers`.
    """
    has = device.features
    reads = has.wgmma if problem.a_dtype == "int8" else has.reads_shared
    return reads and uses_tensor_cores(problem) and block_m >= 64 and block_n >= 16 and warps >= 4


def most_stages(device: Device) -> int:
    """The most stages to try: 12 in shared memory, and one more that mma.sync holds in registers.

    On AMD, Triton's HIP pipeliner keeps the next step in registers and LDS. A third stage pays if LDS is large, and a
    pipeline of 13 stages took 80 s to compile (gfx950, Triton 3.9).
    """
    if device.vendor == "amd":
        return 3 if device.features.copies_to_lds else 2
    return 13


def buffers(config: Config, problem: Problem, device: Device) -> int:
    """How many stages of a pipeline lie in shared memory.

    For wgmma and tcgen05, which read their operands there while the next loads arrive, it is num_stages. For mma.sync
    and AMD's MFMA, which read operands from registers, it is one less. For 8 columns, and for int8 on Blackwell, this
    is an upper bound: Triton 3.9 uses the former instructions and Triton 3.6 to 3.8 the latter.
    """
    stages = config.integer("num_stages")
    return max(1, stages - 1) if holds_a_step(config, problem, device) else stages


def holds_a_step(config: Config, problem: Problem, device: Device) -> bool:
    """Whether registers hold one stage of a pipeline, see `buffers`."""
    if config.integer("BLOCK_SIZE_M") < 64 or config.integer("num_warps") < 4:
        return True
    return not device.features.reads_shared or not uses_tensor_cores(problem)


def uses_wgmma(config: Config, problem: Problem, device: Device) -> bool:
    """Whether `tl.dot` becomes Hopper's wgmma."""
    return device.features.wgmma and asynchronous(config, problem, device)


def uses_mma_sync(config: Config, problem: Problem, device: Device) -> bool:
    """Whether `tl.dot` falls back to mma.sync on Hopper because a tile has too few rows or warps."""
    return device.features.wgmma and uses_tensor_cores(problem) and not uses_wgmma(config, problem, device)


@functools.lru_cache(maxsize=1024)
def vectors(problem: Problem) -> tuple[int, int]:
    """Elements of A and of B in one load: the largest power of two, up to 16 bytes, that divides the contiguous extent.

    This is `operands.placement` for operands that are contiguous; it is 1 if only their addresses are not aligned.
    """
    if not problem.aligned and Problem.from_fields({**problem.fields(), "aligned": None}).aligned:
        return 1, 1
    m, n, k = problem.shape
    # A single row is contiguous whichever way it is stored.
    a_extent = m if problem.layout[0] == "t" and m > 1 else k
    b_extent = k if problem.layout[1] == "t" and k > 1 else n
    a_size, b_size = dtype.ITEMSIZE[problem.a_dtype], dtype.ITEMSIZE[problem.b_dtype]
    return math.gcd(a_extent, 16 // a_size), math.gcd(b_extent, 16 // b_size)


def loads_per_thread(config: Config, problem: Problem, device: Device) -> float:
    """How many loads a thread issues for one step along K, each of which needs registers for its address."""
    block_m, block_n, block_k = tile(config)
    a_vector, b_vector = vectors(problem)
    threads = device.warp_size * config.integer("num_warps")
    return block_k * (block_m / a_vector + block_n / b_vector) / threads


def most_loads(device: Device) -> int:
    """The most loads for one step along K whose addresses fit in a thread's registers.

    The fastest config with more loads took 1.066 times as long as the winner in two sweeps of 30 problems on an H200. A
    lane of CDNA has twice as many registers as a thread on NVIDIA.
    """
    return 128 if device.vendor == "amd" else 64


@functools.lru_cache(maxsize=1024)
def asynchronous_copies(problem: Problem) -> int:
    """How many of the two operands can go to shared memory without passing through registers.

    Source: PTX ISA, cp.async takes 4, 8 or 16 bytes.
    """
    sizes = (dtype.ITEMSIZE[problem.a_dtype], dtype.ITEMSIZE[problem.b_dtype])
    return sum(vector * size >= 4 for vector, size in zip(vectors(problem), sizes, strict=True))


def stages_differ(problem: Problem, device: Device) -> bool:
    """Whether more than two stages compile to a different program than two stages.

    Source: for 1023x2047x4093 bfloat16, whose loads are not asynchronous, 1,306 configs with 3 to 6 stages compiled to
    the same binaries as with 2 (sm_90, Triton 3.6; tests/compile checks it).
    """
    return device.vendor != "nvidia" or asynchronous_copies(problem) > 0


def tile_bytes(config: Config, problem: Problem) -> int:
    """Bytes of one stage: a tile of A and a tile of B."""
    block_m, block_n, block_k = tile(config)
    return block_k * (block_m * dtype.ITEMSIZE[problem.a_dtype] + block_n * dtype.ITEMSIZE[problem.b_dtype])


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block in bytes, which is an upper bound if operands cannot be pipelined.

    tcgen05 adds two barriers. Source: exact for the pointer kernels that tests/compile compiles for NVIDIA. On AMD one
    stage may take less; on gfx950 this is what Triton 3.9 takes, and Triton 3.6 to 3.8 take one stage less.
    """
    held = buffers(config, problem, device)
    barriers = 16 if device.features.tcgen05 and held == config.integer("num_stages") else 0
    pipeline = held * tile_bytes(config, problem) + barriers
    if device.features.copies_to_lds and config.integer("num_stages") > 1:
        # Triton 3.9 copies straight to LDS, into one buffer per stage whose rows are padded by at most 1/32.
        pipeline = config.integer("num_stages") * tile_bytes(config, problem) * 33 // 32
    return pipeline


def accumulator_registers(config: Config, device: Device) -> float:
    """32-bit registers in which a thread holds sums."""
    block_m, block_n, _ = tile(config)
    return block_m * block_n / (device.warp_size * config.integer("num_warps"))


def simt_programs(rows: int, columns: int, warps: int, device: Device) -> int:
    """How many programs of the kernel `simt` a multiprocessor has registers for.

    Source: compiled for sm_90, 118 registers for 16 sums of a thread, 150 for 32, 254 for 64 and more.
    """
    threads = device.warp_size * warps
    held = min(255, 90 + 2 * rows * columns // threads) if rows * columns < 64 * threads else 255
    return max(1, device.features.registers // (held * threads))


def tile_counts(config: Config, problem: Problem) -> tuple[int, int, int]:
    """Numbers of tiles along M and along N, and of steps along K."""
    block_m, block_n, block_k = tile(config)
    return -(-problem.m // block_m), -(-problem.n // block_n), -(-problem.k // block_k)
