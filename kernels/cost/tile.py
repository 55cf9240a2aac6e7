"""The cost model of a tile: what its pipelines, splits and orders share is worked out once, for each a little is left.

The model is `cost`'s, which says where it comes from.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.cost.chips import Chip, chip_of
from tuner.kernels.space import odd_rows, refinements, tile_resources
from tuner.problem import Problem, dtype

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


class Sides(NamedTuple):
    """What of a config makes its tile.

    Attributes:
        rows, columns, rest, length: BLOCK_SIZE_M, N, N_REST and K.
        warps: num_warps.
        ctas: blocks of a cluster.
        share_b: SHARE_B.
    """

    rows: int
    columns: int
    rest: int
    length: int
    warps: int
    ctas: int
    share_b: bool

    @staticmethod
    def of(config: Config) -> Sides:
        """A config's."""
        return Sides(
            config.integer("BLOCK_SIZE_M"),
            config.integer("BLOCK_SIZE_N"),
            config.integer("BLOCK_SIZE_N_REST"),
            config.integer("BLOCK_SIZE_K"),
            config.integer("num_warps"),
            config.integer(refinements.NUM_CTAS, 1),
            bool(config.get(refinements.SHARE_B, False)),
        )

    @property
    def width(self) -> int:
        """Columns of both widths."""
        return self.columns + self.rest


class Loop(NamedTuple):
    """How a kernel goes through its tiles: see `cost.tiled`."""

    by_tma: bool
    persistent: bool = False
    specialized: bool = False
    products: int = 1


class Tile(NamedTuple):
    """What follows from a tile alone, of a problem on a device as the kernel sees them.

    Attributes:
        loop: the kernel's.
        chip, sm_count, room_bytes: of the device; the last is a multiprocessor's shared memory.
        rows, width: its sides.
        tiles_m, tiles_n: how many there are.
        steps: along K, of all splits together.
        stage_bytes: of shared memory.
        sums_bytes: of shared memory, where sums that are not split are stored from there.
        asynchronous: as `rules.reads_shared`.
        beside: programs that a multiprocessor has registers for.
        alone, busy: cycles of one step's multiply-adds for a program by itself, and its share where all that reside
            keep the multiprocessor busy.
        latency, issue: cycles from a load to its data, and in which a program issues the loads of a step.
        store: cycles of a tile on its way out.
        unrounded: whether sums are stored as wide as they are.
        row_bytes: of either operand, along K.
        once_bytes: of device memory, each byte once.
        read_bytes: of device memory, see `_memory_bytes`; without what waves of tiles read of operands that no cache
            holds, and without boxes beyond one small tile.
        beyond_bytes: what these are worth.
    """

    loop: Loop
    chip: Chip
    sm_count: int
    room_bytes: int
    rows: int
    width: int
    tiles_m: int
    tiles_n: int
    steps: int
    stage_bytes: int
    sums_bytes: int
    asynchronous: bool
    beside: int
    alone: float
    busy: float
    latency: float
    issue: float
    store: float
    unrounded: bool
    row_bytes: int
    once_bytes: int
    read_bytes: float
    beyond_bytes: float

    def us(self, splits: int, stages: int, *, group: int = 1, late: bool = False, added_cycles: float = 0.0) -> float:
        """Microseconds of a launch.

        Args:
            splits, stages, group: SPLIT_K, num_stages, GROUP_SIZE_M.
            late: whether the next launch starts after the last step.
            added_cycles: to each step along K.
        """
        by_tma, persistent, _, products = self.loop
        programs, steps = self.tiles_m * self.tiles_n * splits * products, -(-self.steps // splits)
        each = -(-programs // self.sm_count)
        shared = max(1, stages - (not self.asynchronous)) * self.stage_bytes + 1024 + (splits == 1) * self.sums_bytes
        resident = max(1, min(self.room_bytes // shared, self.beside, each))
        rounds, rest = divmod(each, resident)
        # Half a store is hidden where this program multiplies its next tile, or the one beside it does.
        hidden = (not self.unrounded) if persistent else resident > 1
        cycles = each * (self.store / 2 if hidden else self.store)
        cycles += (1 if persistent else rounds + (rest > 0)) * _TILE_CYCLES[by_tma]
        alone = self._alone(stages) + added_cycles
        cycles += steps * (rounds * max(alone, resident * self.busy) + (max(alone, rest * self.busy) if rest else 0.0))
        once, left = self.once_bytes, _LATE if late else 1.0
        wave = min(self.sm_count * resident, programs) / splits / products
        memory_us = (once + left * (self._memory_bytes(wave, group, each) - once)) / self.chip.memory
        start = 0.0
        if (resident + 1) * shared > self.room_bytes and 2 * programs > self.sm_count:
            start = _START_US if not late and (persistent or each <= resident) else 0.0
            memory_us *= 1 + left * _UNEVEN * max(0.0, self.sm_count / programs - 1)
        return LAUNCH_US + start + _overlapped(cycles / self.chip.mhz, memory_us) + self.split_us(splits)

    def least_us(self, splits: int) -> float:
        """What a launch of so many splits takes at least, whatever its pipeline and the order of its tiles."""
        programs = self.tiles_m * self.tiles_n * splits * self.loop.products
        each, steps = -(-programs // self.sm_count), -(-self.steps // splits)
        cycles = _TILE_CYCLES[self.loop.by_tma] + each * self.store / 2
        cycles += steps * max(each * self.busy, self.alone, self.issue)
        memory_us = (self.once_bytes + _LATE * (self.read_bytes - self.once_bytes)) / self.chip.memory
        return LAUNCH_US + _overlapped(cycles / self.chip.mhz, memory_us) + self.split_us(splits)

    def split_us(self, splits: int) -> float:
        """See the function."""
        return split_us(splits, self.chip, self.rows * self.width, by_tma=self.loop.by_tma)

    def _alone(self, stages: int) -> float:
        """Cycles of one step along K of one program by itself.

        That is latency over the loads in flight (Little's law) or the issue of its loads, or its multiply-adds.
        """
        by_tma, _, specialized, _ = self.loop
        # A ring's stage is free again when the step after its own is under way.
        waits = max(self.latency / max(1, stages - 1 - specialized), self.issue)
        waits += _SPECIALIZED_STEP_CYCLES if specialized else _STEP_CYCLES[by_tma]
        # Loads and multiply-adds alternate with one stage, or two where wgmma still reads one as the other lands.
        in_turns = stages == 1 or (stages == 2 and self.asynchronous)
        return waits + _IN_TURNS * self.alone if in_turns else max(waits, self.alone)

    def _memory_bytes(self, wave: float, group: int, each: int) -> float:
        """What a launch reads and writes of device memory, and as much as what else it waits for there is worth.

        Beside what follows from a tile alone: what each wave of tiles reads of operands that no cache holds; and boxes
        beyond the one small tile of an extent, but where programs hide each other's.

        Args:
            wave: tiles at once.
            group: GROUP_SIZE_M.
            each: programs of the fullest multiprocessor.
        """
        total = self.read_bytes if each > 2 else self.read_bytes + self.beyond_bytes
        if self.once_bytes < _CACHED_BYTES:
            return total
        group = min(max(1, group), self.tiles_m)
        columns = min(max(1.0, wave / group), self.tiles_n)
        rows = min(group * max(1.0, wave / (group * self.tiles_n)), self.tiles_m)
        tiles = self.tiles_m * self.tiles_n
        most = tiles * (self.rows + self.width)
        read = min(tiles / wave * (rows * self.rows + columns * self.width), most) * self.row_bytes
        return total + max(0.0, read - self.once_bytes)


@functools.lru_cache(maxsize=256)
def tile_of(sides: Sides, loop: Loop, problem: Problem, device: Device) -> Tile:
    """The tile of a config, remembered for formulas: they ask of all that one is expanded to, one after the other."""
    size, width = dtype.ITEMSIZE[problem.a_dtype], sides.width
    tiles_m, tiles_n = -(-problem.m // sides.rows), -(-problem.n // width)
    asynchronous = tile_resources.reads_shared(sides.rows, sides.columns, sides.warps, problem, device)
    beside = device.features.registers // (sides.rows * width + _THREAD_REGISTERS * device.warp_size * sides.warps)
    math, row_bytes = _math_cycles(sides, problem, device, asynchronous=asynchronous), problem.k * size * loop.products
    read_bytes, beyond_bytes = _read_bytes(sides, problem, row_bytes, by_tma=loop.by_tma)
    odd, unrounded = loop.by_tma and any(odd_rows.odd(problem)), _unrounded(problem)
    return Tile(
        loop=loop,
        chip=chip_of(device),
        sm_count=device.sm_count,
        room_bytes=device.shared_bytes + 1024,
        rows=sides.rows,
        width=width,
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        steps=-(-problem.k // sides.length),
        stage_bytes=sides.length * (sides.rows + width) * size,
        sums_bytes=sides.rows * width * 4 if loop.by_tma and asynchronous and unrounded else 0,
        asynchronous=asynchronous,
        # Specialized as `warp_specialized_measures.resident` has it.
        beside=min(beside, 2 if sides.warps == 4 else 1) if loop.specialized else beside,
        alone=math / min(1.0, sides.warps / 4),
        busy=_busy_cycles(sides, problem, math, by_tma=loop.by_tma),
        latency=_LATENCY[loop.by_tma] * (odd_rows.LATER if odd else 1.0),
        issue=0.0 if loop.by_tma else _issue_cycles(sides, problem, device),
        store=sides.rows * width * dtype.ITEMSIZE[problem.out_dtype] / _STORE_BYTES,
        unrounded=unrounded,
        row_bytes=row_bytes,
        once_bytes=problem.bytes_moved,
        read_bytes=read_bytes,
        beyond_bytes=beyond_bytes,
    )


def split_us(splits: int, chip: Chip, tile_sums: int, *, by_tma: bool) -> float:
    """Every split writes its sums; the last program of a tile reads them all, one after the other."""
    if splits == 1:
        return 0.0
    return (_SPLIT_CYCLES + (splits + 1) * tile_sums * 4 / _PARTIAL_BYTES[by_tma]) / chip.mhz


def _overlapped(one_us: float, other_us: float) -> float:
    """The longer of two times, and of the shorter as much as it does not hide."""
    shorter, longer = (one_us, other_us) if one_us < other_us else (other_us, one_us)
    both: float = (1 + (shorter / longer) ** _SHARPNESS) ** (1 / _SHARPNESS)
    return longer * both


def _busy_cycles(sides: Sides, problem: Problem, math: float, *, by_tma: bool) -> float:
    width, size = sides.width, dtype.ITEMSIZE[problem.a_dtype]
    loaded = sides.length * (sides.rows + width) * size / _L2_BYTES[by_tma]
    shorter, longer = sorted((math, loaded))
    busy = longer + _OVERLAP * shorter
    if not by_tma:
        return busy
    asked = odd_rows.requested(problem, sides.rows, width, sides.length, ctas=sides.ctas, share_b=sides.share_b)
    return max(busy, asked * sides.length * size / _MOST_L2_BYTES)


def _issue_cycles(sides: Sides, problem: Problem, device: Device) -> float:
    a_vector, b_vector = tile_resources.vectors(problem)
    loads = sides.length * (sides.rows / a_vector + sides.width / b_vector)
    return _ISSUE_CYCLES * loads / (device.warp_size * sides.warps)


def _math_cycles(sides: Sides, problem: Problem, device: Device, *, asynchronous: bool) -> float:
    """One program's multiply-adds of one step along K."""
    width = sides.width
    macs = sides.rows * width * sides.length
    if not tile_resources.uses_tensor_cores(problem):
        return macs / 128  # CUDA C++ Programming Guide, throughput of native arithmetic instructions, sm_89 and sm_90
    size = dtype.ITEMSIZE[problem.a_dtype]
    rate = chip_of(device).macs * 2 / size
    if asynchronous:
        instructions = sides.rows / 64 * (sides.length * size / 32)
        return max(macs / rate, instructions * (_OPERAND_CYCLES + width / 4))
    has = device.features
    # Hopper's mma.sync has no 8-bit floats: they are multiplied as 16-bit ones.
    return macs / (rate * has.mma_sync_share * (0.5 if size == 1 and has.wgmma else 1.0))


def _unrounded(problem: Problem) -> bool:
    """Whether sums are stored as wide as they are: by TMA from shared memory of their own (tma_space.shared_bytes)."""
    return dtype.ITEMSIZE[problem.out_dtype] == 4


def _read_bytes(sides: Sides, problem: Problem, row_bytes: int, *, by_tma: bool) -> tuple[float, float]:
    """`Tile.read_bytes` and `beyond_bytes`.

    Beside each byte once: the larger operand, which streams in from memory, as often as tiles read it again meanwhile;
    and TMA's boxes beyond an operand's end.
    """
    width = sides.width
    tiles_m, tiles_n = -(-problem.m // sides.rows), -(-problem.n // width)
    larger, read = max((problem.n, tiles_m * tiles_n * width), (problem.m, tiles_m * tiles_n * sides.rows))
    again = min(max(0, read - larger), _MOST_AGAIN * larger)
    total, small = problem.bytes_moved + again * row_bytes / _AGAIN, 0
    if by_tma:
        beyond = 0
        for extent, block, others in ((problem.m, sides.rows, tiles_n), (problem.n, width, tiles_m)):
            if extent <= block <= 64:
                small += -extent % block * others
            else:
                beyond += -extent % block * others
        total += beyond * row_bytes / _BEYOND
    return total, small * row_bytes / _BEYOND
