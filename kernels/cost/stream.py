"""How long a kernel without `tl.dot` takes that streams B past a few rows of A, in microseconds: see `cost`."""

from __future__ import annotations

import functools
import math

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.cost.tile import memory_bytes_per_us
from tuner.kernels.space import tile_resources
from tuner.problem import Problem, dtype

COUNTED = {
    "launches": 1.5,
    "cycles of a step": 190.0,
    "cycles of a load": 31.0,
    "cycles of an exchange": 309.0,
    "bytes of the busiest": 0.433,
    "bytes": 0.512,
    "splits": 1.35,
}
"""What each of `counts` takes: microseconds, cycles, or for bytes the share that nothing hides.

Fitted by benchmarks/fit/gemv.py to trials of an H100 and an H200.
"""


def streamed(config: Config, problem: Problem, device: Device) -> float:
    """Microseconds of a kernel without `tl.dot` for a few rows of A: a stream of B, as wide as registers let it be."""
    return sum(cost * count for cost, count in zip(COUNTED.values(), counts(config, problem, device), strict=True))


def counts(config: Config, problem: Problem, device: Device) -> tuple[float, ...]:
    """What the time is a sum of, each times its constant in `COUNTED`, in that order.

    They are one launch; a program's steps along K, the loads of a thread in them, and the steps in which warps exchange
    values of A, each as often as programs of a multiprocessor follow one another, over the clock in MHz; the
    microseconds in which the busiest multiprocessor reads its part of B at its share of the memory's rate; those in
    which all bytes are moved at all of that rate; and whether sums are split.
    """
    mhz, bytes_per_us = device.sustained_mhz, memory_bytes_per_us(device)
    block_n, block_k = config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K")
    splits = config.integer("SPLIT_K", 1)
    programs = -(-problem.n // block_n) * splits / device.sm_count
    steps = -(-problem.k // (splits * block_k))
    busiest = math.ceil(programs)
    # A program follows as soon as one ends: the last round is as long as its programs fill it.
    rounds = max(1.0, programs / min(resident(config, problem, device), busiest))
    loads, exchanges = _of_a_step(config, problem, device)
    following = rounds * steps / mhz
    read = busiest * steps * block_n * block_k * dtype.ITEMSIZE[problem.b_dtype]
    return (
        1.0,
        following,
        following * loads,
        following * exchanges,
        read * device.sm_count / bytes_per_us,
        problem.bytes_moved / bytes_per_us,
        float(splits > 1),
    )


def _of_a_step(config: Config, problem: Problem, device: Device) -> tuple[float, bool]:
    """Loads of a thread for one step along K, and whether warps exchange A's values: those of other columns of B."""
    block_n, block_k = config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K")
    threads = device.warp_size * config.integer("num_warps")
    rows = tile_resources.next_power_of_two(problem.m)
    _, vector = tile_resources.vectors(problem)
    along = min(threads, max(device.warp_size, block_k // vector))
    of_a = rows * max(1.0, block_k / (vector * along))
    return block_n * block_k / threads / vector + of_a, along < threads and problem.m > 1


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
