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
from tuner.kernels import odd_rows, refinements, rules
from tuner.kernels.chips import Chip, chip_of
from tuner.problem import Problem

LAUNCH_US = 0.2
"""Of a kernel in a graph that nothing hides; fitted."""
_START_US = 1.0
"""Of programs that find no room beside the last launch's: barriers, descriptors, the first loads; fitted."""
_UNEVEN = 0.4
"""Of the multiprocessors that a wave leaves idle, a share is lost besides where the next launch cannot take the rest:
some start early there, the others late. 96 programs lose 15%, 64 (the next 64 find room) and 128 hardly any; fitted."""
_L2_BYTES = {True: 180.0, False: 90.0}
"""Between the L2 and one multiprocessor a cycle, with and without descriptors, where multiply-adds go on; fitted."""
_MOST_L2_BYTES = 72.0
"""The same at most, by descriptors: 64 are what hardware gives (A100 white paper: 5,120 a cycle over 80), fitted."""
_LATENCY = {True: 1280.0, False: 1560.0}
"""Cycles from a load to its data in a busy device, the same two; fitted."""
_STEP_CYCLES = {True: 200.0, False: 110.0}
"""Barriers and branches of one step along K, the same two; fitted."""
_SPECIALIZED_STEP_CYCLES = 85.0
"""The same where a warp of its own loads; fitted."""
_ISSUE_CYCLES = 27.0
"""Of each load of a thread; fitted."""
_TILE_CYCLES = {True: 3750.0, False: 3300.0}
"""First loads and last stores of a tile, with and without descriptors; fitted."""
_IN_TURNS = 1.25
"""What multiply-adds take that no load overlaps; fitted."""
_STORE_BYTES = 6.0
"""Of sums on their way out, a cycle; fitted."""
_OVERLAP = 0.5
"""Of loads and multiply-adds this share of the shorter one is not hidden; fitted."""
_SHARPNESS = 5
"""The longer of tiles and device memory hides the shorter, but where they are nearly as long: the p of a p-norm."""
_OPERAND_CYCLES = 20.0
"""wgmma reads 64 rows of A from shared memory for every instruction, 16 cycles at 128 B, beside width / 4 for B's."""
_MMA_SHARE = {90: 0.15}
"""What mma.sync reaches of the tensor cores' rate, fitted for Hopper; elsewhere 0.6, as in estimate.py."""
_CACHED_BYTES = 50e6
"""Operands beyond are read from memory again by every wave of tiles."""
_AGAIN = 2.7
"""How many times as fast as from memory the larger operand is read again from the L2, while it streams in; fitted."""
_MOST_AGAIN = 3
"""Readings more of it that count: those of one wave of tiles. Later ones find it in the L2."""
_BEYOND = 0.38
"""The same of what TMA's boxes have outside of an operand: rows that are not there cost more than rows that are;
fitted on 72 to 224 rows of A."""
_SPLIT_CYCLES = 5500.0
"""A release, an acquire and the ordered sum's first load; fitted."""
_PARTIAL_BYTES = {True: 8.5, False: 18.0}
"""Of split sums, which one program reads one after the other, a cycle, with and without descriptors; fitted."""
_LATE = 0.5
"""Of `_UNEVEN`, and of what is read beyond each byte once, this is left where the next launch starts after the last
step (`refinements.PDL_TRIGGER`): it takes no room, and parts none that read the same; fitted."""
_THREAD_REGISTERS = 50
"""Of a thread, besides its sums: compiled for sm_90, 107 registers for 64 sums."""


class _Grid(NamedTuple):
    """What a config makes of a problem: a tile's sides, how many tiles and programs there are, steps of each along K.

    Attributes:
        each: programs of the fullest multiprocessor.
        resident: of these at once.
    """

    block_m: int
    width: int
    block_k: int
    tiles_m: int
    tiles_n: int
    splits: int
    programs: int
    steps: int
    each: int
    resident: int
    products: int


def tiled(
    config: Config,
    problem: Problem,
    device: Device,
    *,
    by_tma: bool | None = None,
    persistent: bool = False,
    specialized: bool = False,
    products: int = 1,
    added_cycles: float = 0.0,
) -> float:
    """Microseconds of a kernel of tiles, of the problem as the kernel sees it.

    Args:
        config: its tile, BLOCK_SIZE_N_REST and SPLIT_K where it has them.
        problem: what is computed.
        device: where.
        by_tma: whether descriptors load; None where the config's LOADS says so.
        persistent: whether programs take tile after tile.
        specialized: whether one warp of a program loads, and others multiply.
        products: how many such products one launch computes; `problem.bytes_moved` is of all of them.
        added_cycles: to each step along K, of what its products wait for.
    """
    chip = chip_of(device)
    by_tma = config.get("LOADS") == "tma" if by_tma is None else by_tma
    shared = _shared_bytes(config, problem, device, by_tma=by_tma)
    grid = _grid(config, problem, device, shared, products, specialized=specialized)
    cycles = grid.each * _store_cycles(grid, problem, persistent=persistent)
    rounds, rest = divmod(grid.each, grid.resident)
    cycles += (1 if persistent else rounds + (rest > 0)) * _TILE_CYCLES[by_tma]
    alone, busy = _step_cycles(config, problem, device, grid, by_tma=by_tma, specialized=specialized)
    alone += added_cycles
    cycles += grid.steps * (rounds * max(alone, grid.resident * busy) + (max(alone, rest * busy) if rest else 0.0))
    late = config.get(refinements.PDL_TRIGGER) == refinements.AFTER_LAST_STEP
    once, left = problem.bytes_moved, _LATE if late else 1.0
    memory_us = (once + left * (_memory_bytes(config, problem, device, grid, by_tma) - once)) / chip.memory
    start = 0.0
    if (grid.resident + 1) * shared > device.shared_bytes + 1024 and 2 * grid.programs > device.sm_count:
        start = _START_US if not late and (persistent or grid.each <= grid.resident) else 0.0
        memory_us *= 1 + left * _UNEVEN * max(0.0, device.sm_count / grid.programs - 1)
    shorter, longer = sorted((cycles / chip.mhz, memory_us))
    total = longer * (1 + (shorter / longer) ** _SHARPNESS) ** (1 / _SHARPNESS)
    return LAUNCH_US + start + total + split_us(config, chip, grid.block_m * grid.width, by_tma=by_tma)


def _grid(config: Config, problem: Problem, device: Device, shared: int, products: int, *, specialized: bool) -> _Grid:
    block_m, block_n, block_k = rules.tile(config)
    width, splits = block_n + config.integer("BLOCK_SIZE_N_REST"), config.integer("SPLIT_K", 1)
    tiles_m, tiles_n = -(-problem.m // block_m), -(-problem.n // width)
    programs = tiles_m * tiles_n * splits * products
    each = -(-programs // device.sm_count)
    warps = config.integer("num_warps")
    registers = 131_072 if device.vendor == "amd" else 65_536  # of 32 bits (CDNA3 ISA guide; CUDA Programming Guide)
    held = block_m * width + _THREAD_REGISTERS * device.warp_size * warps
    resident = max(1, min((device.shared_bytes + 1024) // shared, registers // held, each))
    if specialized:
        resident = min(resident, 2 if warps == 4 else 1)  # warp_specialized_measures.resident
    steps = -(-problem.k // (block_k * splits))
    return _Grid(block_m, width, block_k, tiles_m, tiles_n, splits, programs, steps, each, resident, products)


def _step_cycles(
    config: Config, problem: Problem, device: Device, grid: _Grid, *, by_tma: bool, specialized: bool
) -> tuple[float, float]:
    """One step along K of one program by itself, and its share where all that reside keep the multiprocessor busy."""
    math = _math_cycles(config, problem, device, grid.width)
    loaded = grid.block_k * (grid.block_m + grid.width) * dtypes.ITEMSIZE[problem.a_dtype] / _L2_BYTES[by_tma]
    shorter, longer = sorted((math, loaded))
    # A ring's stage is free again when the step after its own is under way.
    ahead = max(1, config.integer("num_stages", 1) - 1 - specialized)
    latency = _LATENCY[by_tma] * (odd_rows.LATER if by_tma and any(odd_rows.odd(problem)) else 1.0)
    waits = _wait_cycles(config, problem, device, grid.width, latency / ahead, by_tma=by_tma)
    alone = math / min(1.0, config.integer("num_warps") / 4)
    step = _SPECIALIZED_STEP_CYCLES if specialized else _STEP_CYCLES[by_tma]
    in_turns = _in_turns(config, problem, device)
    alone = waits + step + _IN_TURNS * alone if in_turns else max(waits + step, alone)
    busy = longer + _OVERLAP * shorter
    if not by_tma:
        return alone, busy
    asked = odd_rows.asked(config, problem, grid.block_m, grid.width) * grid.block_k * dtypes.ITEMSIZE[problem.a_dtype]
    return alone, max(busy, asked / _MOST_L2_BYTES)


def _store_cycles(grid: _Grid, problem: Problem, *, persistent: bool) -> float:
    """Of one tile on its way out: half of it where this program multiplies its next, or the one beside it does."""
    store = grid.block_m * grid.width * dtypes.ITEMSIZE[problem.out_dtype] / _STORE_BYTES
    hidden = (not _unrounded(problem)) if persistent else grid.resident > 1
    return store / 2 if hidden else store


def _math_cycles(config: Config, problem: Problem, device: Device, width: int) -> float:
    """One program's multiply-adds of one step along K."""
    block_m, block_n, block_k = rules.tile(config)
    macs = block_m * width * block_k
    if not rules.uses_tensor_cores(problem):
        return macs / 128  # CUDA C++ Programming Guide, throughput of native arithmetic instructions, sm_89 and sm_90
    size = dtypes.ITEMSIZE[problem.a_dtype]
    rate = chip_of(device).macs * 2 / size
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


def _wait_cycles(
    config: Config, problem: Problem, device: Device, width: int, latency: float, *, by_tma: bool
) -> float:
    """One program alone: latency over the loads in flight (Little's law), or the issue of its loads."""
    if by_tma:
        return latency
    a_vector, b_vector = rules.vectors(problem)
    block_m, _, block_k = rules.tile(config)
    threads = device.warp_size * config.integer("num_warps")
    return max(latency, _ISSUE_CYCLES * block_k * (block_m / a_vector + width / b_vector) / threads)


def _shared_bytes(config: Config, problem: Problem, device: Device, *, by_tma: bool) -> int:
    """Of one program, with what the driver keeps."""
    block_m, block_n, block_k = rules.tile(config)
    width = block_n + config.integer("BLOCK_SIZE_N_REST")
    asynchronous = rules.reads_shared(block_m, block_n, config.integer("num_warps"), problem, device)
    stages = max(1, config.integer("num_stages", 1) - (not asynchronous))
    shared = stages * block_k * (block_m + width) * dtypes.ITEMSIZE[problem.a_dtype] + 1024
    if by_tma and asynchronous and config.integer("SPLIT_K", 1) == 1 and _unrounded(problem):
        shared += block_m * width * 4
    return shared


def _unrounded(problem: Problem) -> bool:
    """Whether sums are stored as wide as they are: by TMA from shared memory of their own (tma_space.shared_bytes)."""
    return dtypes.ITEMSIZE[problem.out_dtype] == 4


def _memory_bytes(config: Config, problem: Problem, device: Device, grid: _Grid, by_tma: bool) -> float:
    """What a launch reads and writes of device memory, and as much as what else it waits for there is worth.

    Beside each byte once: what each wave of tiles reads of operands that no cache holds; the larger operand, which
    streams in from memory, as often as tiles read it again meanwhile; and TMA's boxes beyond an operand's end.
    """
    row_bytes = problem.k * dtypes.ITEMSIZE[problem.a_dtype] * grid.products
    tiles = grid.tiles_m * grid.tiles_n
    a_rows, b_rows = tiles * grid.block_m, tiles * grid.width
    larger, read = max((problem.n, b_rows), (problem.m, a_rows))
    again = min(max(0, read - larger), _MOST_AGAIN * larger)
    total = problem.bytes_moved + again * row_bytes / _AGAIN
    if by_tma:
        beyond = _beyond(problem.m, grid.block_m, grid) * grid.tiles_n
        total += (beyond + _beyond(problem.n, grid.width, grid) * grid.tiles_m) * row_bytes / _BEYOND
    if problem.bytes_moved < _CACHED_BYTES:
        return total
    wave = min(device.sm_count * grid.resident, grid.programs) / grid.splits / grid.products
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), grid.tiles_m)
    columns = min(max(1.0, wave / group), grid.tiles_n)
    rows = min(group * max(1.0, wave / (group * grid.tiles_n)), grid.tiles_m)
    read = min(tiles / wave * (rows * grid.block_m + columns * grid.width), a_rows + b_rows) * row_bytes
    return total + max(0.0, read - problem.bytes_moved)


def _beyond(extent: int, block: int, grid: _Grid) -> int:
    """Rows that boxes load beyond an extent; of one small box none count where programs hide each other's."""
    if extent <= block <= 64 and grid.each > 2:
        return 0
    return -extent % block


def split_us(config: Config, chip: Chip, tile_sums: int, *, by_tma: bool) -> float:
    """Every split writes its sums; the last program of a tile reads them all, one after the other."""
    splits = config.integer("SPLIT_K", 1)
    if splits == 1:
        return 0.0
    return (_SPLIT_CYCLES + (splits + 1) * tile_sums * 4 / _PARTIAL_BYTES[by_tma]) / chip.mhz
