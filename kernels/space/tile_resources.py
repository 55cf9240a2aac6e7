"""What a tile of a `tl.dot` kernel takes of a device: the formulas behind the search spaces' rules."""

from __future__ import annotations

import functools
import math

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.problem import Problem, dtype

MOST_THREADS = 1024
"""Threads of a block at most, on NVIDIA and AMD.

Source: CUDA C++ Programming Guide, technical specifications; HIP's likewise.
"""


def next_power_of_two(size: int) -> int:
    """The smallest power of two not below `size` (at least 1)."""
    return 1 << (size - 1).bit_length()


def tile(config: Config) -> tuple[int, int, int]:
    """(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K)."""
    return config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K")


def shortest_k(problem: Problem) -> int:
    """Smallest BLOCK_SIZE_K: `tl.dot` takes 32 for 8-bit operands, 16 below it is the space's own end.

    Source: `min_dot_size` of Triton's NVIDIA backend, 3.6 to 3.9.
    """
    return 32 if dtype.ITEMSIZE[problem.a_dtype] == 1 else 16


def uses_tensor_cores(problem: Problem) -> bool:
    """Whether `tl.dot` of these operands is a matrix instruction: all but full float32."""
    return problem.precision != "ieee"


def asynchronous(config: Config, problem: Problem, device: Device) -> bool:
    """`reads_shared` for a config."""
    block_m, block_n, _ = tile(config)
    return reads_shared(block_m, block_n, config.integer("num_warps"), problem, device)


def reads_shared(block_m: int, block_n: int, warps: int, problem: Problem, device: Device) -> bool:
    """Whether `tl.dot` is an instruction that reads its operands from shared memory by itself: wgmma or tcgen05.

    They take 64 rows, 16 columns and four warps at least. Source: `getMMAVersionSafe` and `supportMMA` of Triton's
    AccelerateMatmul pass; both kinds were seen in PTX, and with 8 columns neither. int8 was seen as wgmma, never as
    tcgen05. Triton 3.9 differs in these two, see `buffers`.
    """
    has = device.features
    reads = has.wgmma if problem.a_dtype == "int8" else has.reads_shared
    return reads and uses_tensor_cores(problem) and block_m >= 64 and block_n >= 16 and warps >= 4


def most_stages(device: Device) -> int:
    """Stages of the deepest pipeline that is tried: 12 in shared memory, and one that mma.sync holds in registers.

    On AMD Triton's HIP pipeliner keeps the next step in registers and LDS: a third stage pays where LDS is large, and
    one of 13 took 80 s to compile (gfx950, Triton 3.9).
    """
    if device.vendor == "amd":
        return 3 if device.features.copies_to_lds else 2
    return 13


def buffers(config: Config, problem: Problem, device: Device) -> int:
    """Stages of a pipeline that lie in shared memory.

    wgmma and tcgen05 read their operands there while the next loads land: num_stages. mma.sync and AMD's MFMA copy them
    to registers first: one less. An upper bound for 8 columns and for int8 on Blackwell, which Triton 3.9 multiplies by
    the former and 3.6 to 3.8 by the latter.
    """
    stages = config.integer("num_stages")
    return max(1, stages - 1) if holds_a_step(config, problem, device) else stages


def holds_a_step(config: Config, problem: Problem, device: Device) -> bool:
    """Whether registers hold one step of a pipeline, see `buffers`."""
    if config.integer("BLOCK_SIZE_M") < 64 or config.integer("num_warps") < 4:
        return True
    return not device.features.reads_shared or not uses_tensor_cores(problem)


def uses_wgmma(config: Config, problem: Problem, device: Device) -> bool:
    """Whether `tl.dot` becomes Hopper's wgmma."""
    return device.features.wgmma and asynchronous(config, problem, device)


def uses_tcgen05(config: Config, problem: Problem, device: Device) -> bool:
    """Whether `tl.dot` becomes datacenter Blackwell's tcgen05.mma, whose sums lie in tensor memory."""
    return device.features.tcgen05 and asynchronous(config, problem, device)


def uses_mma_sync(config: Config, problem: Problem, device: Device) -> bool:
    """Whether `tl.dot` falls back to mma.sync on Hopper, for want of rows or warps."""
    return device.features.wgmma and uses_tensor_cores(problem) and not uses_wgmma(config, problem, device)


@functools.lru_cache(maxsize=1024)
def vectors(problem: Problem) -> tuple[int, int]:
    """Elements of A and of B that one load takes: a power of two up to 16 bytes that divides the contiguous extent.

    Those of contiguous operands, as `operands.placement` finds them; 1 where addresses are what is not aligned.
    """
    if not problem.aligned and Problem.from_fields({**problem.fields(), "aligned": None}).aligned:
        return 1, 1
    m, n, k = problem.shape
    # A row of its own is contiguous whichever way it is stored.
    a_extent = m if problem.layout[0] == "t" and m > 1 else k
    b_extent = k if problem.layout[1] == "t" and k > 1 else n
    a_size, b_size = dtype.ITEMSIZE[problem.a_dtype], dtype.ITEMSIZE[problem.b_dtype]
    return math.gcd(a_extent, 16 // a_size), math.gcd(b_extent, 16 // b_size)


def loads_per_thread(config: Config, problem: Problem, device: Device) -> float:
    """Loads that a thread issues for one step along K; each has an address of its own in registers."""
    block_m, block_n, block_k = tile(config)
    a_vector, b_vector = vectors(problem)
    threads = device.warp_size * config.integer("num_warps")
    return block_k * (block_m / a_vector + block_n / b_vector) / threads


def most_loads(device: Device) -> int:
    """Loads for one step along K whose addresses fit in a thread's registers.

    Of the configs beyond it the fastest took 1.066 times the winner's time in two sweeps of 30 problems on an H200. A
    lane of CDNA has twice the registers of a thread of NVIDIA's.
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
    """Whether more than two stages are another program than two.

    Source: 1,306 configs with 3 to 6 stages of 1023x2047x4093 bfloat16, whose loads are not asynchronous, were the same
    binary as with 2 (sm_90, Triton 3.6; tests/compile holds it).
    """
    return device.vendor != "nvidia" or asynchronous_copies(problem) > 0


def tile_bytes(config: Config, problem: Problem) -> int:
    """Bytes of one stage: a tile of A and a tile of B."""
    block_m, block_n, block_k = tile(config)
    return block_k * (block_m * dtype.ITEMSIZE[problem.a_dtype] + block_n * dtype.ITEMSIZE[problem.b_dtype])


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block, bytes, for operands that can be pipelined (an upper bound for those that cannot).

    tcgen05 adds two barriers. Source: exact on the pointer kernels that tests/compile compiles for NVIDIA; on AMD one
    stage may take less, and on gfx950 it is what Triton 3.9 takes: 3.6 to 3.8 take a stage less.
    """
    block_m, block_n, _ = tile(config)
    held = buffers(config, problem, device)
    barriers = 16 if device.features.tcgen05 and held == config.integer("num_stages") else 0
    pipeline = held * tile_bytes(config, problem) + barriers
    if device.features.copies_to_lds and config.integer("num_stages") > 1:
        # Triton 3.9 copies straight to LDS, into a buffer a stage whose rows are padded by a thirty-second at most.
        pipeline = config.integer("num_stages") * tile_bytes(config, problem) * 33 // 32
    if "num_ctas" not in config:
        return pipeline
    # Blocks of a cluster each hold a part of the tile, and may rearrange it on its way out.
    return max(pipeline, dtype.ITEMSIZE[problem.out_dtype] * block_m * block_n)


def accumulator_registers(config: Config, device: Device) -> float:
    """32-bit registers a thread holds sums in."""
    block_m, block_n, _ = tile(config)
    return block_m * block_n / (device.warp_size * config.integer("num_warps"))


def tile_counts(config: Config, problem: Problem) -> tuple[int, int, int]:
    """Tiles along M and N, and steps along K."""
    block_m, block_n, block_k = tile(config)
    return -(-problem.m // block_m), -(-problem.n // block_n), -(-problem.k // block_k)
