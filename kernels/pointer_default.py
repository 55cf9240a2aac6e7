"""The `pointer` kernel's config where nobody tuned: a formula of the problem and the device.

Constants marked "measured" come from an exhaustive sweep on an H200: a grid on every second problem picks them, the
rest agree. Figures: benchmarks/default_regret.py, benchmarks/results/default-regret-h200.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tuner import dtype as dtypes
from tuner.config import Config, Value
from tuner.device import Device
from tuner.kernels import rules
from tuner.kernels.pointer_space import NAME, canonical, space
from tuner.problem import Problem

_MACS_PER_CYCLE = {"sm_80": 1024, "sm_86": 512, "sm_89": 512, "sm_90": 2048, "sm_100": 4096, "sm_103": 4096}
"""16-bit multiply-adds of one multiprocessor a cycle (the vendors' architecture white papers); 1024 elsewhere."""
_BYTES_PER_CYCLE = 40
"""Between the L2 and one multiprocessor: 64 at best (A100 white paper: 5,120 B a cycle over 80), less when all ask."""
_LATENCY_CYCLES = 2000
"""From the issue of a load to its data, in a busy device: measured, 1,750 serves as well."""
_ISSUE_CYCLES = 25
"""What each load of a thread adds to a step along K: measured, 30 serves as well."""
_TILE_CYCLES = 1500
"""What a tile costs besides, the first loads above all: measured, 1,000 serves as well."""
_THREAD_REGISTERS = 50
"""Of a thread, besides its sums: compiled for sm_90, 107 registers for 64 sums."""


class _Tile(NamedTuple):
    """A config in short; `reads_shared` as `rules.reads_shared`."""

    m: int
    n: int
    k: int
    stages: int
    warps: int
    reads_shared: bool


def default_config(problem: Problem, device: Device) -> Config:
    """The candidate of least estimated time that the search space would try.

    Ties go to the larger tile; of two as large to the wider, but to the taller for wgmma and tcgen05 with B stored
    [N, K]. That is measured, not understood: on an H200 256x128 was the faster there, with bfloat16.
    """
    if device.is_interpreter:
        return _config(_interpreted(problem), problem, device)

    def rank(tile: _Tile) -> tuple[float, int, int, int]:
        tall = tile.reads_shared and problem.layout[1] == "t"
        return _cycles(tile, problem, device), -tile.m * tile.n, -(tile.m if tall else tile.n), tile.k

    tried = space(problem, device)
    ranked = sorted(_candidates(problem, device), key=rank)
    configs = (_config(tile, problem, device) for tile in ranked)
    # A lookup must never raise: the smallest config runs wherever any does.
    smallest = _config(_Tile(16, 16, rules.shortest_k(problem), 1, 1, False), problem, device)
    return next((config for config in configs if tried.rejection(config) is None), smallest)


def _interpreted(problem: Problem) -> _Tile:
    m, n, k = (min(64, rules.next_power_of_two(max(16, size))) for size in problem.shape)
    return _Tile(m, n, max(k, rules.shortest_k(problem)), 1, 4, False)


def _candidates(problem: Problem, device: Device) -> Iterator[_Tile]:
    """Every tile, at a few lengths along K, with a pipeline as deep as fits and one as deep as fits twice."""
    size, lengths = dtypes.ITEMSIZE[problem.a_dtype], _lengths(problem)
    deepest = 2 if device.vendor == "amd" or not rules.stages_differ(problem, device) else 6
    rows, columns = (
        [block for block in (16, 32, 64, 128, 256) if block < 2 * max(16, extent)] for extent in (problem.m, problem.n)
    )
    for m, n in ((m, n) for m in rows for n in columns if m * n <= 128 * 256):
        # 64 sums a thread, 8 at least; four warps wherever they have work.
        warps = min(8, max(1, min(4, m * n // 256), m * n // (64 * device.warp_size)))
        reads_shared = rules.reads_shared(m, warps, problem, device)
        # Twice as many sums fit beside operands in shared memory, and on CDNA; else 128x256x64 spilled (sm_80, sm_90).
        if m * n > 64 * device.warp_size * warps and not reads_shared and device.vendor != "amd":
            continue
        for k in lengths:
            steps = -(-problem.k // k)
            # tcgen05 keeps 16 bytes of barriers, the driver 1 KiB a block (CUDA C++ Programming Guide).
            alone, twice = (
                max(1, min(deepest, steps, limit // (k * (m + n) * size) + (not reads_shared)))
                for limit in (device.shared_bytes - 16, (device.shared_bytes - 1024) // 2 - 16)
            )
            yield _Tile(m, n, k, alone, warps, reads_shared)
            if 3 <= twice < alone:
                yield _Tile(m, n, k, twice, warps, reads_shared)


def _lengths(problem: Problem) -> set[int]:
    """BLOCK_SIZE_K: rows of one swizzle of shared memory (128 bytes), of two and four where K has four such steps.

    Operands that pass through registers, element by element or for want of a matrix instruction, get short rows.
    """
    size = dtypes.ITEMSIZE[problem.a_dtype]
    longest = rules.next_power_of_two(max(rules.shortest_k(problem), problem.k))
    if rules.asynchronous_copies(problem) < 2:
        rows: tuple[int, ...] = (64, 128)
    elif rules.uses_tensor_cores(problem):
        rows = (128, *(row for row in (256, 512) if 4 * row <= problem.k * size))
    else:
        rows = (128,)
    return {min(256, longest, row // size) for row in rows}


def _cycles(tile: _Tile, problem: Problem, device: Device) -> float:
    """Estimated time: the rounds of the fullest multiprocessor, each of as many tiles as reside on it at once.

    In a round, a step along K takes the longer of two. One is the sum over its tiles of their multiply-adds or their
    bytes, whichever is longer, and a quarter of the other, which never hides entirely. The other is how long one tile
    alone would take: the latency of a load over the loads in flight (Little's law), or the issue of its loads.
    """
    block_m, block_n, block_k, stages, warps, reads_shared = tile
    size, out_size = dtypes.ITEMSIZE[problem.a_dtype], dtypes.ITEMSIZE[problem.out_dtype]
    threads = device.warp_size * warps
    tiles = -(-(-(-problem.m // block_m) * -(-problem.n // block_n)) // device.sm_count)
    shared = (device.shared_bytes + 1024) // (
        max(1, stages - (not reads_shared)) * block_k * (block_m + block_n) * size + 1024
    )
    registers = 131_072 if device.vendor == "amd" else 65_536  # of 32 bits (CDNA3 ISA guide; CUDA Programming Guide)
    resident = max(1, min(tiles, shared, registers // (block_m * block_n + _THREAD_REGISTERS * threads)))
    macs = _macs_per_cycle(reads_shared, problem, device)
    a_vector, b_vector = rules.vectors(problem)
    shorter, longer = sorted(
        (block_m * block_n * block_k / macs, block_k * (block_m + block_n) * size / _BYTES_PER_CYCLE)
    )
    busy = longer + shorter / 4
    issue = _ISSUE_CYCLES * block_k * (block_m / a_vector + block_n / b_vector) / threads
    in_flight = max(1, stages - 1) if rules.asynchronous_copies(problem) == 2 else 1
    alone = max(_LATENCY_CYCLES / in_flight, issue)
    steps = -(-problem.k // block_k)
    rounds, rest = divmod(tiles, resident)
    cycles = rounds * (_TILE_CYCLES + steps * max(alone, resident * busy))
    if rest:
        cycles += _TILE_CYCLES + steps * max(alone, rest * busy)
    return cycles + tiles * block_m * block_n * out_size / _BYTES_PER_CYCLE


def _macs_per_cycle(reads_shared: bool, problem: Problem, device: Device) -> float:
    if not rules.uses_tensor_cores(problem):
        return 128  # CUDA C++ Programming Guide, throughput of native arithmetic instructions, sm_89 and sm_90
    size = dtypes.ITEMSIZE[problem.a_dtype]
    macs = _MACS_PER_CYCLE.get(device.arch, 1024) * 2 / size
    if device.capability == 90 and not reads_shared:
        macs *= 0.6 if size > 1 else 0.3  # mma.sync, for which fp8 is upcast besides
    return macs


def _config(tile: _Tile, problem: Problem, device: Device) -> Config:
    sizes = {"BLOCK_SIZE_M": tile.m, "BLOCK_SIZE_N": tile.n, "BLOCK_SIZE_K": tile.k}
    tiles = -(-problem.m // tile.m) * -(-problem.n // tile.n)
    group = 8 if tiles > device.sm_count and not device.is_interpreter else 1
    amd: dict[str, Value] = {}
    if device.vendor == "amd":
        kpack = 2 if device.arch == "gfx942" and dtypes.ITEMSIZE[problem.a_dtype] == 2 else 1
        amd = {"matrix_instr_nonkdim": 16, "waves_per_eu": 0, "kpack": kpack}
    config = Config(NAME, **sizes, GROUP_SIZE_M=group, num_stages=tile.stages, num_warps=tile.warps, **amd)
    return canonical(config, problem, device)
