"""What a tile of a `tl.dot` kernel takes of a device: the formulas behind the search spaces' rules."""

from __future__ import annotations

from tuner import dtype as dtypes
from tuner.config import Config
from tuner.device import Device
from tuner.problem import Problem


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
    return 32 if dtypes.ITEMSIZE[problem.a_dtype] == 1 else 16


def uses_tensor_cores(problem: Problem) -> bool:
    """Whether `tl.dot` of these operands is a matrix instruction: all but full float32."""
    return problem.precision != "ieee"


def uses_wgmma(config: Config, problem: Problem, device: Device) -> bool:
    """Whether `tl.dot` becomes Hopper's wgmma: 64 rows and four warps at least.

    Source: `getMMAVersionSafe` and `supportMMA` of Triton's AccelerateMatmul pass; both kinds were seen in PTX.
    """
    block_m, _, _ = tile(config)
    hopper = device.capability == 90 and uses_tensor_cores(problem)
    return hopper and block_m >= 64 and config.integer("num_warps") >= 4


def uses_tcgen05(config: Config, problem: Problem, device: Device) -> bool:
    """Whether `tl.dot` becomes datacenter Blackwell's tcgen05.mma, whose sums lie in tensor memory.

    Source: as `uses_wgmma`.
    """
    block_m, _, _ = tile(config)
    blackwell = device.capability in (100, 103) and uses_tensor_cores(problem)
    return blackwell and block_m >= 64 and config.integer("num_warps") >= 4


def tile_bytes(config: Config, problem: Problem) -> int:
    """Bytes of one stage: a tile of A and a tile of B."""
    block_m, block_n, block_k = tile(config)
    return block_k * (block_m * dtypes.ITEMSIZE[problem.a_dtype] + block_n * dtypes.ITEMSIZE[problem.b_dtype])


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block, bytes, for operands that can be pipelined (an upper bound for those that cannot).

    wgmma and tcgen05 read their operands from shared memory while the next loads land: num_stages buffers. mma.sync and
    AMD's MFMA copy them to registers first: one buffer less. tcgen05 adds two barriers. Source: exact on 110 of 110
    pointer kernels compiled for sm_90, on those of tests/compile for the rest; on AMD one stage may take less.
    """
    stages = config.integer("num_stages")
    if uses_wgmma(config, problem, device):
        return stages * tile_bytes(config, problem)
    if uses_tcgen05(config, problem, device):
        return stages * tile_bytes(config, problem) + 16
    return max(1, stages - 1) * tile_bytes(config, problem)


def accumulator_registers(config: Config, device: Device) -> float:
    """32-bit registers a thread holds sums in."""
    block_m, block_n, _ = tile(config)
    return block_m * block_n / (device.warp_size * config.integer("num_warps"))


def tile_counts(config: Config, problem: Problem) -> tuple[int, int, int]:
    """Tiles along M and N, and steps along K."""
    block_m, block_n, block_k = tile(config)
    return -(-problem.m // block_m), -(-problem.n // block_n), -(-problem.k // block_k)
