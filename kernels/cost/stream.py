"""How long a kernel without `tl.dot` takes that streams B past a few rows of A, in microseconds: see `cost`."""

from __future__ import annotations

import functools

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.cost import tile as tile_cost
from tuner.kernels.cost.chips import chip_of
from tuner.kernels.space import tile_resources
from tuner.problem import Problem, dtype

_LATENCY = 720.0
_OVERLAP = 0.3
"""As in `tile_cost`, of loads straight to registers; fitted."""
_MOST_BLOCKS = 32
"""Blocks of a multiprocessor: sm_80, 90 and 100 (CUDA C++ Programming Guide); few elsewhere are so small."""


def streamed(config: Config, problem: Problem, device: Device) -> float:
    """Microseconds of a kernel without `tl.dot` for a few rows of A: a stream of B, as wide as registers let it be."""
    chip = chip_of(device)
    block_n, block_k = config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K")
    splits = config.integer("SPLIT_K", 1)
    programs = -(-problem.n // block_n) * splits
    steps = -(-problem.k // (splits * block_k))
    beside = min(resident(config, problem, device), max(1, -(-programs // device.sm_count)))
    # A program follows as soon as one ends: the last round is as long as its programs fill it.
    rounds = max(1.0, programs / (device.sm_count * beside))
    read = beside * block_n * block_k * dtype.ITEMSIZE[problem.b_dtype]
    per_cycle = chip.memory / device.sm_count / chip.mhz
    cycles = rounds * steps * max(2 * _LATENCY, read / per_cycle)
    memory_us = problem.bytes_moved / chip.memory
    shorter, longer = sorted((cycles / chip.mhz + tile_cost.split_us(splits, chip, block_n, by_tma=False), memory_us))
    return tile_cost.LAUNCH_US + longer + _OVERLAP * shorter


def resident(config: Config, problem: Problem, device: Device) -> int:
    """Blocks that a multiprocessor has room for."""
    threads = device.warp_size * config.integer("num_warps")
    return max(1, min(_MOST_BLOCKS, 2048 // threads, int(65_536 / (threads * registers(config, problem, threads)))))


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
