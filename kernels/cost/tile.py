"""What follows from a tile alone: how many there are, what one step along K takes, what is read of device memory."""

from __future__ import annotations

import functools
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.cost import products
from tuner.kernels.space import odd_rows, refinements, tile_resources
from tuner.problem import Problem, dtype

_L2_BYTES = {True: 180.0, False: 90.0}
"""Bytes a cycle from the L2 to one multiprocessor while multiply-adds go on, with and without descriptors; fitted."""
_MOST_L2_BYTES = 72.0
"""The most bytes a cycle by descriptors; the hardware gives 64 (A100 white paper: 5,120 a cycle over 80); fitted."""
_LATENCY = {True: 1280.0, False: 1560.0}
"""Cycles from a load to its data in a busy device, with and without descriptors; fitted."""
_ISSUE_CYCLES = 27.0
"""Cycles of a program for each load of a thread; fitted."""
_STORE_BYTES = 6.0
"""Bytes of sums that leave a multiprocessor in a cycle; fitted."""
_MEMORY_SHARE = 0.9375
"""The share of the peak bandwidth that the fastest kernels reach; fitted."""
_LOAD_CYCLES = 4.0
"""Cycles of a multiprocessor for each load of a warp. They decide where operands pass through registers element by
element; fitted on the default configs of `pointer`."""
_SHORT_LOAD = 1.75
"""How many times as long as one of 16 bytes a shorter load takes, as unaligned operands have them; fitted."""
_OVERLAP = 0.5
"""The share that is not hidden of the shorter of loads and multiply-adds; fitted."""
CACHED_SHARE = 0.795
"""The share of the L2 beyond which operands are read from memory again by every wave of tiles; fitted."""
_AGAIN = 2.7
"""How many times as fast as from memory the larger operand is read again from the L2, while it streams in; fitted."""
_MOST_AGAIN = 3
"""The most further readings that count: those of one wave of tiles. Later ones find the operand in the L2."""
_BEYOND = 0.38
"""How many times as fast as from memory TMA fills what its boxes have outside of an operand: less than once, for rows
that are not there cost more than rows that are; fitted on 72 to 224 rows of A."""
_THREAD_REGISTERS = 50
"""Registers of a thread besides its sums: compiled for sm_90, 107 registers for 64 sums."""


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

    def loads(self, problem: Problem) -> float:
        """Loads of one step along K, by pointers and of 16 bytes at most.

        For tensor cores shorter ones count `_SHORT_LOAD` times, but none beyond the last row or column.
        """
        vectors = tile_resources.vectors(problem)
        if not tile_resources.uses_tensor_cores(problem):
            return self.length * (self.rows / vectors[0] + self.width / vectors[1])
        sides = (self.rows, problem.m, problem.a_dtype), (self.width, problem.n, problem.b_dtype)
        return self.length * sum(
            side / vector if vector * dtype.ITEMSIZE[name] == 16 else _SHORT_LOAD * min(side, extent) / vector
            for vector, (side, extent, name) in zip(vectors, sides, strict=True)
        )


class Loop(NamedTuple):
    """How a kernel goes through its tiles.

    Attributes:
        by_tma: whether descriptors load.
        persistent: whether programs take tile after tile.
        specialized: whether one warp of a program loads, and others multiply.
        products: how many such products one launch computes; `problem.bytes_moved` is of all of them.
        in_cluster: whether the splits of a sum are the blocks of one cluster.
        exchanged: whether the device computes the transposed output: B's columns are its rows then.
        simt: whether float32 is multiplied as the kernel `simt` does, without bank conflicts.
    """

    by_tma: bool
    persistent: bool = False
    specialized: bool = False
    products: int = 1
    in_cluster: bool = False
    exchanged: bool = False
    simt: bool = False


class Tile(NamedTuple):
    """What follows from a tile alone, of a problem on a device as the kernel sees them.

    Attributes:
        loop: the kernel's.
        mhz, bytes_per_us: the clock, and what memory reaches.
        sm_count, room_bytes, cached_bytes: of the device: multiprocessors, shared memory of each, what the L2 keeps.
        rows, width: its sides.
        tiles_m, tiles_n: how many there are.
        blocks: what computes them: of clusters that lie beyond the last tile in part, all.
        beyond_m, beyond_n: rows and columns that the last of them has beyond the operands' ends, see `_beyond`.
        steps: along K, of all splits together.
        held: stages that multiply-adds hold: their own, and that of the step before while it is under way; one less for
            the splits of a cluster whose operands both come from shared memory, as fitted.
        stage_bytes: of shared memory.
        sums_bytes: of shared memory, where sums that are not split are stored from there.
        asynchronous: as `tile_resources.reads_shared`.
        resident: programs that a multiprocessor has registers for.
        products, alone: cycles of one step's multiply-adds where all that reside keep the multiprocessor busy, and of a
            program by itself.
        intake: cycles in which a multiprocessor takes in what one step needs.
        busy: cycles of one step of a program where a multiprocessor is busy with several.
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
    mhz: float
    bytes_per_us: float
    sm_count: int
    room_bytes: int
    cached_bytes: float
    rows: int
    width: int
    tiles_m: int
    tiles_n: int
    blocks: int
    beyond_m: int
    beyond_n: int
    steps: int
    held: int
    stage_bytes: int
    sums_bytes: int
    asynchronous: bool
    resident: int
    products: float
    alone: float
    intake: float
    busy: float
    latency: float
    issue: float
    store: float
    unrounded: bool
    row_bytes: int
    once_bytes: int
    read_bytes: float
    beyond_bytes: float


def tile_of(sides: Sides, loop: Loop, problem: Problem, device: Device) -> Tile:
    """The tile of a config, remembered for formulas: they ask for all that one is expanded to, one after the other."""
    # Devices are equal whatever their clock and bandwidth, so these are part of what is remembered by.
    return _tile_of(sides, loop, problem, device, (device.sustained_mhz, memory_bytes_per_us(device)))


def tile_of_few_rows(sides: Sides, loop: Loop, problem: Problem, device: Device) -> Tile:
    """The tile of a kernel whose tiles may have fewer rows than a warpgroup multiplies, or than A has.

    With more rows than A it takes as long as if A had them, as trials of `warp_specialized`, whose loading warp is the
    same, do in benchmarks/data. With fewer than a warpgroup's it loads no more, but multiplies as many.
    """
    whole = problem.with_m(max(problem.m, sides.rows))
    found = tile_of(sides, loop, whole, device)
    if sides.rows >= products.WARPGROUP_ROWS:
        return found
    multiplied = tile_of(sides._replace(rows=products.WARPGROUP_ROWS), loop, whole, device)
    return multiplied._replace(read_bytes=found.read_bytes, beyond_bytes=found.beyond_bytes)


@functools.lru_cache(maxsize=256)
def _tile_of(sides: Sides, loop: Loop, problem: Problem, device: Device, rates: tuple[float, float]) -> Tile:
    size, width = dtype.ITEMSIZE[problem.a_dtype], sides.width
    tiles_m, tiles_n = -(-problem.m // sides.rows), -(-problem.n // width)
    asynchronous = tile_resources.reads_shared(sides.rows, sides.columns, sides.warps, problem, device)
    in_gluon = loop.specialized or loop.in_cluster
    from_registers = in_gluon and tile_resources.through_registers(problem)
    if loop.simt:
        multiplied, slower = products.cycles_of_simt(sides, problem), products.simt_alone(sides)
    else:
        multiplied = products.cycles(
            *(sides, problem, device), by_tma=loop.by_tma, asynchronous=asynchronous, from_registers=from_registers
        )
        slower = 1.0
    alone, row_bytes = slower * multiplied / min(1.0, sides.warps / 4), problem.k * size
    if asynchronous and device.features.wgmma and not (loop.specialized or loop.in_cluster):
        alone = max(alone, products.cycles_of_sums(sides, problem))
    if from_registers:
        alone += products.exposed_cycles(sides)
    intake, loaded = _intake_cycles(sides, problem, by_tma=loop.by_tma)
    beyond = _beyond(sides, loop, problem)
    boxes = beyond if loop.by_tma and not loop.in_cluster else (0, 0)
    read_bytes, beyond_bytes = _read_bytes(sides, problem, row_bytes * loop.products, boxes)
    odd, unrounded = loop.by_tma and any(odd_rows.odd(problem)), _unrounded(problem)
    return Tile(
        loop=loop,
        mhz=rates[0],
        bytes_per_us=rates[1],
        sm_count=device.sm_count,
        room_bytes=device.shared_bytes + device.features.reserved_bytes,
        cached_bytes=CACHED_SHARE * device.l2_bytes,
        rows=sides.rows,
        width=width,
        tiles_m=tiles_m,
        tiles_n=tiles_n,
        blocks=_blocks(sides, loop, tiles_m, tiles_n),
        beyond_m=beyond[0],
        beyond_n=beyond[1],
        steps=-(-problem.k // sides.length),
        held=1 + (products.loads_ahead(sides) if from_registers else loop.specialized),
        stage_bytes=sides.length * (sides.rows + width) * size,
        sums_bytes=sides.rows * width * 4 if loop.by_tma and asynchronous and unrounded else 0,
        asynchronous=asynchronous,
        resident=_resident(sides, loop, device),
        products=multiplied,
        alone=alone,
        intake=intake,
        busy=max(max(multiplied, loaded) + _OVERLAP * min(multiplied, loaded), intake),
        latency=_LATENCY[loop.by_tma] * (odd_rows.LATER if odd else 1.0),
        issue=0.0 if loop.by_tma else _issue_cycles(sides, problem, device),
        store=sides.rows * width * dtype.ITEMSIZE[problem.out_dtype] / _STORE_BYTES,
        unrounded=unrounded,
        row_bytes=row_bytes * loop.products,
        once_bytes=problem.bytes_moved,
        read_bytes=read_bytes,
        beyond_bytes=beyond_bytes,
    )


def _blocks(sides: Sides, loop: Loop, tiles_m: int, tiles_n: int) -> int:
    """Blocks of a launch for each split: those of a cluster beyond the last tile keep a multiprocessor busy, too."""
    down, across = (sides.ctas, 1) if sides.share_b else (1, sides.ctas)
    if not loop.specialized:  # a cluster's blocks share a sum
        down = across = 1
    return -(-tiles_m // down) * down * -(-tiles_n // across) * across


def _resident(sides: Sides, loop: Loop, device: Device) -> int:
    """Programs that a multiprocessor has registers for, by the kernel's own layout of them."""
    if loop.simt:
        return tile_resources.simt_programs(sides.rows, sides.width, sides.warps, device)
    threads = device.warp_size * sides.warps
    resident = device.features.registers // (sides.rows * sides.width + _THREAD_REGISTERS * threads)
    if loop.in_cluster:
        return 1
    if loop.specialized:
        return min(resident, 2 if sides.warps == 4 else 1)  # as the kernel's `resources.resident` has it
    return resident


def memory_bytes_per_us(device: Device) -> float:
    """What device memory reaches, bytes a microsecond."""
    return _MEMORY_SHARE * device.peak_bytes_per_us


def _intake_cycles(sides: Sides, problem: Problem, *, by_tma: bool) -> tuple[float, float]:
    """Cycles in which a multiprocessor takes in one step: at best, and where multiply-adds go on meanwhile."""
    width, size = sides.width, dtype.ITEMSIZE[problem.a_dtype]
    loaded = sides.length * (sides.rows + width) * size / _L2_BYTES[by_tma]
    if not by_tma:
        return max(loaded, _LOAD_CYCLES * sides.loads(problem) / 32), loaded
    requested = odd_rows.requested(problem, sides.rows, width, sides.length, ctas=sides.ctas, share_b=sides.share_b)
    return requested * sides.length * size / _MOST_L2_BYTES, loaded


def _issue_cycles(sides: Sides, problem: Problem, device: Device) -> float:
    return _ISSUE_CYCLES * sides.loads(problem) / (device.warp_size * sides.warps)


def _unrounded(problem: Problem) -> bool:
    """Whether sums are stored as wide as they are: by TMA from shared memory of their own (tma_space.shared_bytes)."""
    return dtype.ITEMSIZE[problem.out_dtype] == 4


def _beyond(sides: Sides, loop: Loop, problem: Problem) -> tuple[int, int]:
    """Rows and columns of the last tile beyond the operands' ends.

    They count as in the trials that constants and forests are fitted to: a kernel that loads by TMA moved its last tile
    of A's rows back to end with them, where these run along K, and had rows beyond the end only where all of A is
    smaller than a tile, or than one of its two widths. Where TMA stores, the same held of B's columns, but neither of
    kernels in Gluon nor of those that scale blocks. Today those in Gluon move them too, and all move rows of an A
    stored [K, M]; fits without such trials chose no better (docs/decisions.md, 164).
    """
    rows_moved = loop.by_tma and (problem.layout[1] == "t" if loop.exchanged else problem.layout[0] == "n")
    by_triton = not (loop.specialized or loop.in_cluster or problem.scaling == "block")
    columns_moved = loop.by_tma and problem.aligned and by_triton
    moved = (columns_moved, rows_moved) if loop.exchanged else (rows_moved, columns_moved)
    rows, columns = (
        sum(max(0, box - extent) for box in boxes) if back else -extent % sum(boxes)
        for (extent, *boxes), back in zip(
            ((problem.m, sides.rows), (problem.n, sides.columns, sides.rest)), moved, strict=True
        )
    )
    return rows, columns


def _read_bytes(sides: Sides, problem: Problem, row_bytes: int, boxes: tuple[int, int]) -> tuple[float, float]:
    """`Tile.read_bytes` and `beyond_bytes`.

    Beside each byte once: the larger operand, which streams in from memory, as often as tiles read it again meanwhile;
    and TMA's boxes beyond an operand's end, of so many rows and columns.
    """
    width = sides.width
    tiles_m, tiles_n = -(-problem.m // sides.rows), -(-problem.n // width)
    larger, read = max((problem.n, tiles_m * tiles_n * width), (problem.m, tiles_m * tiles_n * sides.rows))
    again = min(max(0, read - larger), _MOST_AGAIN * larger)
    small = beyond = 0
    for extent, block, over, others in (
        (problem.m, sides.rows, boxes[0], tiles_n),
        (problem.n, width, boxes[1], tiles_m),
    ):
        if extent <= block <= 64:
            small += over * others
        else:
            beyond += over * others
    total = problem.bytes_moved + (again / _AGAIN + beyond / _BEYOND) * row_bytes
    return total, small * row_bytes / _BEYOND
