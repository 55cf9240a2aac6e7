"""How long a tile configuration takes, estimated: what the formulas of `pointer` and of large tiles rank by.

Constants marked "measured" come from an exhaustive sweep of the `pointer` kernel on an H200: a grid on every second
problem picks them, the rest agree. The formula's config took 1.03 times the fastest recorded time over 30 problems
(geometric mean), 1.15 at worst.
"""

from __future__ import annotations

from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernels.space import tile_resources
from tuner.problem import Problem, dtype

_BYTES_PER_CYCLE = 40
"""Between the L2 and one multiprocessor: 64 at best (A100 white paper: 5,120 B a cycle over 80), less when all ask."""
_TMA_BYTES_PER_CYCLE = 80
"""The same for loads through descriptors."""
_LATENCY_CYCLES = 2000
"""From the issue of a load to its data, in a busy device: measured, 1,750 serves as well."""
_ISSUE_CYCLES = 25
"""What each load of a thread adds to a step along K: measured, 30 serves as well."""
_TILE_CYCLES = 1500
"""What a tile costs besides, the first loads above all: measured, 1,000 serves as well."""
_THREAD_REGISTERS = 50
"""Of a thread, besides its sums: compiled for sm_90, 107 registers for 64 sums."""


class Tile(NamedTuple):
    """A config in short, of the problem that the kernel sees.

    Attributes:
        m, n, k: BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K.
        stages, warps: num_stages, num_warps.
        reads_shared: as `rules.reads_shared`.
        by_tma: loaded through descriptors: no thread computes addresses.
    """

    m: int
    n: int
    k: int
    stages: int
    warps: int
    reads_shared: bool
    by_tma: bool = False


def cycles(tile: Tile, problem: Problem, device: Device) -> float:
    """Estimated time: the rounds of the fullest multiprocessor, each of as many programs as reside on it at once.

    In a round, a step along K takes the longer of two. One is the sum over its programs of their multiply-adds or their
    bytes, whichever is longer, and a quarter of the other, which never hides entirely. The other is how long one
    program alone would take: the latency of a load over the loads in flight (Little's law), or the issue of its loads.
    """
    size, out_size = dtype.ITEMSIZE[problem.a_dtype], dtype.ITEMSIZE[problem.out_dtype]
    threads = device.warp_size * tile.warps
    tiles = -(-problem.m // tile.m) * -(-problem.n // tile.n)
    programs = -(-tiles // device.sm_count)
    shared = (device.shared_bytes + 1024) // (
        max(1, tile.stages - (not tile.reads_shared)) * tile.k * (tile.m + tile.n) * size + 1024
    )
    registers = device.features.registers
    resident = max(1, min(programs, shared, registers // (tile.m * tile.n + _THREAD_REGISTERS * threads)))
    shorter, longer = sorted(
        (
            tile.m * tile.n * tile.k / _macs_per_cycle(tile.reads_shared, problem, device),
            tile.k * (tile.m + tile.n) * size / (_TMA_BYTES_PER_CYCLE if tile.by_tma else _BYTES_PER_CYCLE),
        )
    )
    busy = longer + shorter / 4
    alone = _alone(tile, problem, threads)
    steps = -(-problem.k // tile.k)
    rounds, rest = divmod(programs, resident)
    total = rounds * (_TILE_CYCLES + steps * max(alone, resident * busy))
    if rest:
        total += _TILE_CYCLES + steps * max(alone, rest * busy)
    return total + programs * tile.m * tile.n * out_size / _BYTES_PER_CYCLE


def _alone(tile: Tile, problem: Problem, threads: int) -> float:
    if tile.by_tma:
        return _LATENCY_CYCLES / max(1, tile.stages - 1)
    a_vector, b_vector = tile_resources.vectors(problem)
    issue = _ISSUE_CYCLES * tile.k * (tile.m / a_vector + tile.n / b_vector) / threads
    in_flight = max(1, tile.stages - 1) if tile_resources.asynchronous_copies(problem) == 2 else 1
    return max(_LATENCY_CYCLES / in_flight, issue)


def _macs_per_cycle(reads_shared: bool, problem: Problem, device: Device) -> float:
    if not tile_resources.uses_tensor_cores(problem):
        return 128  # CUDA C++ Programming Guide, throughput of native arithmetic instructions, sm_89 and sm_90
    size = dtype.ITEMSIZE[problem.a_dtype]
    macs = device.features.macs * 2 / size
    if device.features.wgmma and not reads_shared:
        macs *= 0.6 if size > 1 else 0.3  # mma.sync, for which fp8 is upcast besides
    return macs
