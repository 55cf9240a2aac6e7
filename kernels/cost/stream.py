"""How long a kernel without `tl.dot` takes that streams B past a few rows of A, in microseconds: see `cost`."""

from __future__ import annotations

import functools

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.cost.terms import LAUNCH_US, split_us
from tuner.kernels.cost.tile import memory_bytes_per_us
from tuner.kernels.space import tile_resources
from tuner.problem import Problem, dtype

_LATENCY = 720.0
_OVERLAP = 0.3
"""As in `tile`, of loads straight to registers; fitted."""


def streamed(config: Config, problem: Problem, device: Device) -> float:
    """Microseconds of a kernel without `tl.dot` for a few rows of A: a stream of B, as wide as registers let it be."""
    mhz, bytes_per_us = device.sustained_mhz, memory_bytes_per_us(device)
    block_n, block_k = config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K")
    splits = config.integer("SPLIT_K", 1)
    programs = -(-problem.n // block_n) * splits
    steps = -(-problem.k // (splits * block_k))
    each = min(resident(config, problem, device), max(1, -(-programs // device.sm_count)))
    # A program follows as soon as one ends: the last round is as long as its programs fill it.
    rounds = max(1.0, programs / (device.sm_count * each))
    read = each * block_n * block_k * dtype.ITEMSIZE[problem.b_dtype]
    per_cycle = bytes_per_us / device.sm_count / mhz
    cycles = rounds * steps * max(2 * _LATENCY, read / per_cycle)
    memory_us = problem.bytes_moved / bytes_per_us
    shorter, longer = sorted((cycles / mhz + split_us(splits, block_n, mhz, by_tma=False), memory_us))
    return LAUNCH_US + longer + _OVERLAP * shorter


def resident(config: Config, problem: Problem, device: Device) -> int:
    """Blocks that a multiprocessor has room for."""
    has, threads = device.features, device.warp_size * config.integer("num_warps")
    by_registers = int(has.registers / (threads * registers(config, problem, threads)))
    return max(1, min(has.blocks, has.threads // threads, by_registers))


def registers(config: Config, problem: Problem, threads: int) -> float:
    """Of a thread: mostly its sums or, where these are folded (B stored [N, K]), what it has loaded of a step."""
    return _registers(config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K"), problem, threads)


@functools.lru_cache(maxsize=256)
def _registers(block_n: int, block_k: int, problem: Problem, threads: int) -> float:
    rows = tile_resources.next_power_of_two(problem.m)
    if problem.layout[1] != "t":
        # Fitted; 75 for 32 sums (Nsight Compute on an H200).
        return min(255.0, 14 + 1.9 * rows * block_n * block_k / threads)
    loaded = block_n * dtype.ITEMSIZE[problem.b_dtype] + rows * dtype.ITEMSIZE[problem.a_dtype]
    return min(255.0, 18 + loaded * block_k / threads / 4)  # compiled for sm_90: 25 to 80 within 6, but one of 84
