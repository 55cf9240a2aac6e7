"""The cost model: how long a config takes, in microseconds, before anything is compiled.

A roofline, refined by what tells tiles apart: how the tiles fill the multiprocessors, what one step along K waits for,
what grouped tiles read again from device memory, what splitting K costs. It ranks; docs/search.md says how well, on
recorded landscapes (benchmarks/cost_model.py). The shape of it follows tritonBLAS (Origami) and DeepGEMM's heuristics;
constants marked "fitted" are rounded from a fit on the landscapes of an H200 that the file there does not hold out.
"""

from __future__ import annotations

from typing import NamedTuple

from tuner import dtype as dtypes
from tuner.config import Config
from tuner.device import Device
from tuner.kernels import rules
from tuner.problem import Problem


class _Chip(NamedTuple):
    """Of an architecture: clock in MHz, 16-bit multiply-adds of a multiprocessor a cycle, memory in bytes a us."""

    mhz: float
    macs: int
    memory: float


_CHIPS = {
    "sm_80": _Chip(1410, 1024, 1.9e6),
    "sm_86": _Chip(1700, 512, 0.72e6),
    "sm_89": _Chip(2500, 512, 0.81e6),
    "sm_90": _Chip(1755, 2048, 4.5e6),
    "sm_100": _Chip(1850, 4096, 7.5e6),
    "sm_103": _Chip(1900, 4096, 7.5e6),
    "gfx942": _Chip(2100, 1024, 5.0e6),
    "gfx950": _Chip(2400, 2048, 7.5e6),
}
"""Clocks and rates: the vendors' data sheets and white papers (A100, RTX A6000, L40S, H200, B200, MI300X, MI355X).
Memory is 0.94 of the data sheet's, fitted for the H200."""
_UNKNOWN = _Chip(1700, 1024, 2e6)

_LAUNCH_US = 0.25
"""Of a kernel in a graph that nothing hides; fitted."""
_L2_BYTES = {True: 256.0, False: 80.0}
"""Between the L2 and one multiprocessor a cycle, with and without descriptors; fitted: by TMA it is never the limit."""
_LATENCY = {True: 1200.0, False: 720.0}
"""Cycles from a load to its data in a busy device, the same two; fitted."""
_IN_TURNS = 1.5
"""What multiply-adds take that no load overlaps; fitted."""
_STEP_CYCLES = 170.0
"""Barriers and branches of one step along K; fitted."""
_ISSUE_CYCLES = 18.0
"""Of each load of a thread; fitted."""
_TILE_CYCLES = 2000.0
"""First loads and last stores of a tile; fitted."""
_STORE_BYTES = 13.0
"""Of sums on their way out, a cycle; fitted."""
_OVERLAP = 0.5
"""Of loads and multiply-adds this share of the shorter one is not hidden; fitted."""
_MEMORY_OVERLAP = 0.3
"""The same of device memory and tiles; fitted."""
_OPERAND_CYCLES = 20.0
"""wgmma reads 64 rows of A from shared memory for every instruction, 16 cycles at 128 B, beside width / 4 for B's."""
_MMA_SHARE = {90: 0.22}
"""What mma.sync reaches of the tensor cores' rate, fitted for Hopper; elsewhere 0.6, as in estimate.py."""
_REREAD = 0.9
"""Of what the waves of tiles read again this share comes from memory, where operands exceed `_CACHED_BYTES`; fitted."""
_CACHED_BYTES = 50e6
_SPLIT_CYCLES = 6900.0
"""A release, an acquire and the ordered sum's first load; fitted."""
_THREAD_REGISTERS = 50
"""Of a thread, besides its sums: compiled for sm_90, 107 registers for 64 sums."""
_COPY_US = 5.0
"""Launch and tail of the copies that pad operands; fitted."""


def tiled(
    config: Config,
    problem: Problem,
    device: Device,
    *,
    by_tma: bool | None = None,
    persistent: bool = False,
    products: int = 1,
) -> float:
    """Microseconds of a kernel of tiles, of the problem as the kernel sees it.

    Args:
        config: its tile, BLOCK_SIZE_N_REST and SPLIT_K where it has them.
        problem: what is computed.
        device: where.
        by_tma: whether descriptors load; None where the config's LOADS says so.
        persistent: whether programs take tile after tile.
        products: how many such products one launch computes; `problem.bytes_moved` is of all of them.
    """
    chip = _CHIPS.get(device.arch, _UNKNOWN)
    by_tma = config.get("LOADS") == "tma" if by_tma is None else by_tma
    block_m, block_n, block_k = rules.tile(config)
    width = block_n + config.integer("BLOCK_SIZE_N_REST")
    splits, warps = config.integer("SPLIT_K", 1), config.integer("num_warps")
    tiles_m, tiles_n = -(-problem.m // block_m), -(-problem.n // width)
    programs = tiles_m * tiles_n * splits * products
    steps = -(-problem.k // (block_k * splits))
    size = dtypes.ITEMSIZE[problem.a_dtype]
    math = _math_cycles(config, problem, device, width)
    resident = _resident(config, problem, device, width, -(-programs // device.sm_count), by_tma=by_tma)
    waits = _wait_cycles(config, problem, device, width, by_tma=by_tma)
    alone = math / min(1.0, warps / 4)
    if _in_turns(config, problem, device):
        alone = waits + _IN_TURNS * alone + _STEP_CYCLES
    else:
        alone = max(waits + _STEP_CYCLES, alone)
    shorter, longer = sorted((math, block_k * (block_m + width) * size / _L2_BYTES[by_tma]))
    busy = longer + _OVERLAP * shorter
    each = -(-programs // device.sm_count)
    rounds, rest = divmod(each, resident)
    cycles = rounds * steps * max(alone, resident * busy) + (steps * max(alone, rest * busy) if rest else 0.0)
    store = block_m * width * dtypes.ITEMSIZE[problem.out_dtype] / _STORE_BYTES
    if (not _unrounded(problem)) if persistent else resident > 1:
        # On their way while this program multiplies its next tile, or the one beside it.
        store /= 2
    cycles += (1 if persistent else rounds + (rest > 0)) * _TILE_CYCLES + each * store
    wave = min(device.sm_count * resident, programs) / splits / products
    memory_us = _memory_bytes(config, problem, wave) / chip.memory
    shorter, longer = sorted((cycles / chip.mhz, memory_us))
    total = longer + _MEMORY_OVERLAP * shorter
    return _LAUNCH_US + total + _split_us(config, chip, block_m * width)


def streamed(config: Config, problem: Problem, device: Device) -> float:
    """Microseconds of a kernel without `tl.dot` for a few rows of A: a stream of B, as wide as registers let it be."""
    chip = _CHIPS.get(device.arch, _UNKNOWN)
    block_n, block_k = config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K")
    splits, threads = config.integer("SPLIT_K", 1), device.warp_size * config.integer("num_warps")
    programs = -(-problem.n // block_n) * splits
    steps = -(-problem.k // (splits * block_k))
    held = rules.next_power_of_two(problem.m) * block_n * block_k / threads
    registers = min(
        255.0, 14 + 1.9 * held
    )  # fitted; 75 for 32 sums (Nsight Compute, benchmarks/results/profile-h200.json)
    each = -(-programs // device.sm_count)
    resident = max(1, min(2048 // threads, int(65_536 / (threads * registers)), each))
    rounds = -(-programs // (device.sm_count * resident))
    read = resident * block_n * block_k * dtypes.ITEMSIZE[problem.b_dtype]
    per_cycle = chip.memory / device.sm_count / chip.mhz
    cycles = rounds * steps * max(2 * _LATENCY[False], read / per_cycle)
    memory_us = problem.bytes_moved / chip.memory
    shorter, longer = sorted((cycles / chip.mhz + _split_us(config, chip, block_n), memory_us))
    return _LAUNCH_US + longer + _MEMORY_OVERLAP * shorter


def copied(inner_us: float, copied_bytes: float, device: Device) -> float:
    """Microseconds of a kernel and of the copies of its operands before it, `copied_bytes` read and written."""
    return inner_us + _COPY_US + copied_bytes / _CHIPS.get(device.arch, _UNKNOWN).memory


def _math_cycles(config: Config, problem: Problem, device: Device, width: int) -> float:
    """One program's multiply-adds of one step along K."""
    block_m, block_n, block_k = rules.tile(config)
    macs = block_m * width * block_k
    if not rules.uses_tensor_cores(problem):
        return macs / 128  # CUDA C++ Programming Guide, throughput of native arithmetic instructions, sm_89 and sm_90
    size = dtypes.ITEMSIZE[problem.a_dtype]
    rate = _CHIPS.get(device.arch, _UNKNOWN).macs * 2 / size
    if rules.reads_shared(block_m, block_n, config.integer("num_warps"), problem, device):
        instructions = block_m / 64 * (block_k * size / 32)
        return max(macs / rate, instructions * (_OPERAND_CYCLES + width / 4))
    share = _MMA_SHARE.get(device.capability, 0.6)
    # Hopper's mma.sync has no 8-bit floats: they are multiplied as 16-bit ones.
    return macs / (rate * share * (0.5 if size == 1 and device.capability == 90 else 1.0))


def _in_turns(config: Config, problem: Problem, device: Device) -> bool:
    """Whether loads and multiply-adds alternate: one stage, or two where wgmma still reads one as the other lands."""
    stages = config.integer("num_stages", 1)
    return stages == 1 or (stages == 2 and rules.asynchronous(config, problem, device))


def _wait_cycles(config: Config, problem: Problem, device: Device, width: int, *, by_tma: bool) -> float:
    """One program alone: latency over the loads in flight (Little's law), or the issue of its loads."""
    ahead = max(1, config.integer("num_stages", 1) - 1)
    latency = _LATENCY[by_tma] / ahead
    if by_tma:
        return latency
    a_vector, b_vector = rules.vectors(problem)
    block_m, _, block_k = rules.tile(config)
    threads = device.warp_size * config.integer("num_warps")
    return max(latency, _ISSUE_CYCLES * block_k * (block_m / a_vector + width / b_vector) / threads)


def _resident(config: Config, problem: Problem, device: Device, width: int, each: int, *, by_tma: bool) -> int:
    """Programs on a multiprocessor at once: by shared memory, by registers, and as many as there are."""
    block_m, block_n, block_k = rules.tile(config)
    warps = config.integer("num_warps")
    asynchronous = rules.reads_shared(block_m, block_n, warps, problem, device)
    stages = max(1, config.integer("num_stages", 1) - (not asynchronous))
    shared = stages * block_k * (block_m + width) * dtypes.ITEMSIZE[problem.a_dtype] + 1024
    if by_tma and asynchronous and config.integer("SPLIT_K", 1) == 1 and _unrounded(problem):
        shared += block_m * width * 4
    registers = 131_072 if device.vendor == "amd" else 65_536  # of 32 bits (CDNA3 ISA guide; CUDA Programming Guide)
    held = block_m * width + _THREAD_REGISTERS * device.warp_size * warps
    return max(1, min((device.shared_bytes + 1024) // shared, registers // held, each))


def _unrounded(problem: Problem) -> bool:
    """Whether sums are stored as wide as they are: by TMA from shared memory of their own (tma_space.shared_bytes)."""
    return dtypes.ITEMSIZE[problem.out_dtype] == 4


def _memory_bytes(config: Config, problem: Problem, wave: float) -> float:
    """What a launch reads and writes of device memory: each wave of tiles reads its rows of A and columns of B anew."""
    if problem.bytes_moved < _CACHED_BYTES:
        return problem.bytes_moved
    block_m, block_n, _ = rules.tile(config)
    width = block_n + config.integer("BLOCK_SIZE_N_REST")
    tiles_m, tiles_n = -(-problem.m // block_m), -(-problem.n // width)
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), tiles_m)
    columns = min(max(1.0, wave / group), tiles_n)
    rows = min(group * max(1.0, wave / (group * tiles_n)), tiles_m)
    row_bytes = problem.k * dtypes.ITEMSIZE[problem.a_dtype]
    read = tiles_m * tiles_n / wave * (rows * block_m + columns * width) * row_bytes
    read = min(read, tiles_m * tiles_n * (block_m + width) * row_bytes)
    return problem.bytes_moved + _REREAD * max(0.0, read - problem.bytes_moved)


def _split_us(config: Config, chip: _Chip, tile_sums: int) -> float:
    """Every split writes its sums; the last program of a tile reads them all, one after the other."""
    splits = config.integer("SPLIT_K", 1)
    return 0.0 if splits == 1 else (_SPLIT_CYCLES + (splits + 1) * tile_sums * 4 / 40) / chip.mhz
