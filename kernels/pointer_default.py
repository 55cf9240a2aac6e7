"""The `pointer` kernel's config where nobody tuned: a formula of the problem and the device."""

from __future__ import annotations

import math

from tuner import dtype as dtypes
from tuner.config import Config
from tuner.device import Device
from tuner.kernels import rules
from tuner.kernels.pointer_space import NAME, canonical, space
from tuner.problem import Problem

_MACS_PER_CYCLE = {"sm_80": 1024, "sm_86": 512, "sm_89": 512, "sm_90": 2048, "sm_100": 4096, "sm_103": 4096}
"""16-bit multiply-adds of one multiprocessor a cycle (the vendors' architecture white papers); 1024 elsewhere."""
_LOAD_BYTES_PER_CYCLE = 40
"""From the L2 into one multiprocessor: 64 at best (A100 white paper: 5,120 B a cycle over 80), less when all ask."""
_STEP_CYCLES = 40
"""What a step along K costs at least: a barrier and the latency of the matrix instructions."""
_TILE_CYCLES = 1500
"""What a tile costs besides: the first loads from device memory, the epilogue."""


def default_config(problem: Problem, device: Device) -> Config:
    """The tile with the least estimated time, as deep a pipeline as fits, as many warps as the sums ask for.

    An estimate is waves times the cycles of one tile; a step along K takes the longer of its multiply-adds and its
    loads, and a quarter of the other, which never hides entirely. This is the wave quantization of NVIDIA's Matrix
    Multiplication Background guide joined with the roofline of one multiprocessor. Ties go to the larger tile. The
    best that the search space would try is taken.
    """
    blocks = (16, 32, 64) if device.is_interpreter else (16, 32, 64, 128, 256)
    rows = [size for size in blocks if size <= max(16, rules.next_power_of_two(problem.m))]
    columns = [size for size in blocks if size <= max(16, rules.next_power_of_two(problem.n))]
    tiles = [(m, n) for m in rows for n in columns if m * n <= 128 * 256]
    tiles.sort(key=lambda tile: (_cycles(tile, problem, device), -tile[0] * tile[1], -tile[1]))
    configs = (canonical(_complete(*tile, problem, device), problem, device) for tile in tiles)
    tried = space(problem, device)
    return next((config for config in configs if tried.rejection(config) is None), _complete(16, 16, problem, device))


def _cycles(tile: tuple[int, int], problem: Problem, device: Device) -> float:
    block_m, block_n = tile
    waves = math.ceil(math.ceil(problem.m / block_m) * math.ceil(problem.n / block_n) / device.sm_count)
    itemsize = dtypes.ITEMSIZE[problem.a_dtype]
    macs = _MACS_PER_CYCLE.get(device.arch, 1024) * 2 / itemsize
    if not rules.uses_tensor_cores(problem):
        macs = 128
    elif device.capability == 90 and block_m < 64:
        macs *= 0.6 if itemsize > 1 else 0.3  # mma.sync, for which fp8 is upcast besides
    loads = (block_m + block_n) * itemsize / _LOAD_BYTES_PER_CYCLE
    step_k = 128 // itemsize
    shorter, longer = sorted((block_m * block_n / macs, loads))
    per_step = max(_STEP_CYCLES, step_k * (longer + shorter / 4))
    return waves * (_TILE_CYCLES + per_step * math.ceil(problem.k / step_k))


def _complete(block_m: int, block_n: int, problem: Problem, device: Device) -> Config:
    itemsize = dtypes.ITEMSIZE[problem.a_dtype]
    # A row of 128 bytes is one swizzle of shared memory; small tiles take two, to have more in flight.
    row_bytes = 128 if block_m + block_n >= 192 else 256
    covering = rules.next_power_of_two(max(rules.shortest_k(problem), problem.k))
    tile = {"BLOCK_SIZE_M": block_m, "BLOCK_SIZE_N": block_n, "BLOCK_SIZE_K": min(row_bytes // itemsize, covering)}
    if device.is_interpreter:
        tile["BLOCK_SIZE_K"] = min(64, covering)
        return Config(NAME, **tile, GROUP_SIZE_M=1, num_stages=1, num_warps=4)
    warps = _warps(block_m, block_n, device)
    group = 8 if -(-problem.m // block_m) * -(-problem.n // block_n) > device.sm_count else 1
    if device.vendor == "amd":
        kpack = 2 if device.arch == "gfx942" and itemsize == 2 else 1
        amd = {"matrix_instr_nonkdim": 16, "waves_per_eu": 0, "kpack": kpack}
        config = Config(NAME, **tile, GROUP_SIZE_M=group, num_stages=2, num_warps=warps, **amd)
        deepest = 2
    else:
        config = Config(NAME, **tile, GROUP_SIZE_M=group, num_stages=1, num_warps=warps)
        deepest = 4 if block_m * block_n >= 128 * 128 else 6
    return _deepened(config, problem, device, deepest)


def _warps(block_m: int, block_n: int, device: Device) -> int:
    """128 sums a thread at most, 8 at least; four warps wherever they have work, for wgmma and for loads."""
    lanes = device.warp_size
    fewest = -(-block_m * block_n // (lanes * 128))
    return max(fewest, min(4, max(1, block_m * block_n // 256)))


def _deepened(config: Config, problem: Problem, device: Device, deepest: int) -> Config:
    """As many stages as fit in shared memory and K has steps; a shorter step along K where not even two do."""
    steps = rules.tile_counts(config, problem)[2]
    for stages in range(min(deepest, steps), 1, -1):
        deeper = config.replace(num_stages=stages)
        if rules.shared_bytes(deeper, problem, device) <= device.shared_bytes:
            return deeper
    return config.replace(num_stages=1)
