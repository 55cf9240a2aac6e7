"""The terms of a launch: what it waits for, each worked out once, and the estimate that they add up to."""

from __future__ import annotations

from typing import NamedTuple

from tuner.kernels.cost.tile import Tile

LAUNCH_US = 0.2
"""The part of a kernel's start in a graph that nothing hides; fitted."""
_START_US = 1.0
"""The start of programs that find no room beside the last launch's: barriers, descriptors, first loads; fitted."""
_UNEVEN = 0.4
"""The share that is lost of the multiprocessors a wave leaves idle, where the next launch cannot take all of them: some
of its programs start early there, the others late. 96 programs lose 15%, 64 (the next 64 find room) and 128 hardly any;
fitted."""
_STEP_CYCLES = {True: 200.0, False: 110.0}
"""Barriers and branches of one step along K, with and without descriptors; fitted."""
_SPECIALIZED_STEP_CYCLES = 85.0
"""Barriers and branches of one step where a warp of its own loads; fitted."""
_TILE_CYCLES = {True: 3750.0, False: 3300.0}
"""First loads and last stores of a tile, with and without descriptors; fitted."""
_ONE_STEP_CYCLES, _ONE_STEP_STORED = 2600.0, 0.6
"""First loads, the only ones, multiply-adds and last stores of a tile without descriptors where one step takes all of
K, and the share of its store that nothing hides; fitted on a draw of `pointer`'s configs (docs/decisions.md, 174), and
not for exchanged operands, whose estimates forests correct that were fitted without."""
_IN_TURNS = 1.25
"""How many times as long multiply-adds take where loads and they take turns; fitted."""
_SHARPNESS = 5
"""The p of a p-norm: the longer of tiles and device memory hides the shorter, unless they are nearly as long."""
_SPLIT_CYCLES = 5500.0
"""The cost of splitting a sum at all: a release, an acquire and the first load of the ordered sum; fitted."""
_CLUSTER_CYCLES = 2800.0
"""First loads and last stores where the parts of a sum are added in a cluster; fitted."""
_CLUSTER_BLOCK_US = 0.06
"""What each block adds where a cluster sums its parts through distributed shared memory; fitted."""
_PARTIAL_BYTES = {True: 8.5, False: 18.0}
"""Bytes a cycle at which one program reads the parts of a split sum, with and without descriptors; fitted."""
_PART_CYCLES = 400.0
"""Cycles from one part of a split sum to the next in `simt`, at least: it asks for a part when it has the last."""
_LATE = 0.5
"""What is left of `_UNEVEN`, and of what is read beyond each byte once, where the next launch starts after the last
step (`refinements.PDL_TRIGGER`): it takes no room, and comes between no programs that read the same; fitted."""


SCALING_CYCLES = 400.0
"""Cycles that scaling adds to one step along K where the products of one step are scaled before the next is multiplied.

Fitted on the four problems with block scales in benchmarks/data/landscapes-h200.json.gz.
"""


class Terms(NamedTuple):
    """What a launch waits for, in microseconds, and how it fills the device.

    Attributes:
        us: the estimate that the terms add up to, as far as they do not hide each other.
        memory: each byte of the operands and of the output once.
        again: what is read again from memory or, meanwhile, from the L2, and what boxes have beyond an operand's end.
        products: multiply-adds of the fullest multiprocessor.
        intake: what that multiprocessor takes in from the L2.
        latency: from loads to their data, as far as a pipeline of this depth does not hide them, or their issue.
        barriers: barriers and branches of every step.
        ramp: the first loads and the last stores of tiles.
        store: tiles on their way out.
        splits: adding up the parts of sums that are split.
        beyond_m, beyond_n: rows and columns of the last tile beyond the operands' ends.
        steps: along K, of each program.
        programs: how many there are.
        each: programs of the fullest multiprocessor.
        resident: programs that reside on a multiprocessor at once.
        shared_bytes: shared memory of one program.
        full: whether the next launch's programs find no room beside them.
    """

    us: float
    memory: float
    again: float
    products: float
    intake: float
    latency: float
    barriers: float
    ramp: float
    store: float
    splits: float
    beyond_m: int
    beyond_n: int
    steps: int
    programs: int
    each: int
    resident: int
    shared_bytes: int
    full: bool


def terms_of(
    tile: Tile, splits: int, stages: int, *, group: int = 1, late: bool = False, added_cycles: float = 0.0
) -> Terms:
    """What a launch waits for.

    Args:
        tile: what follows from the tile alone.
        splits, stages, group: SPLIT_K, num_stages, GROUP_SIZE_M.
        late: whether the next launch starts after the last step.
        added_cycles: to each step along K.
    """
    by_tma, persistent, _, products, in_cluster, *_ = tile.loop
    programs, steps = tile.blocks * splits * products, -(-tile.steps // splits)
    each = -(-programs // tile.sm_count)
    in_registers = not (tile.asynchronous or tile.loop.simt)  # a stage, see `tile_resources.buffers`
    shared = max(1, stages - in_registers) * tile.stage_bytes + 1024 + (splits == 1) * tile.sums_bytes
    resident = max(1, min(tile.room_bytes // shared, tile.resident, each))
    rounds, rest = divmod(each, resident)
    turns = rounds + (rest > 0)
    # Half a store is hidden where this program multiplies its next tile, or the one beside it does.
    hidden = (not tile.unrounded) if persistent else resident > 1
    store = each * (tile.store / 2 if hidden else tile.store)
    ramp = (1 if persistent else turns) * (_CLUSTER_CYCLES if in_cluster else _TILE_CYCLES[by_tma])
    waits, barriers = _waits(tile, stages, steps)
    alone = _alone(tile, stages, waits + barriers) + added_cycles
    if tile.steps == stages == 1 and not (
        by_tma or in_cluster or tile.loop.simt or tile.loop.exchanged or added_cycles
    ):
        ramp, store, alone = turns * _ONE_STEP_CYCLES, store * _ONE_STEP_STORED, 0.0
    loop = steps * (rounds * max(alone, resident * tile.busy) + (max(alone, rest * tile.busy) if rest else 0.0))
    once, left = tile.once_bytes, _LATE if late else 1.0
    wave = min(tile.sm_count * resident, programs) / splits / products
    memory_us = (once + left * (_memory_bytes(tile, wave, group, each) - once)) / tile.bytes_per_us
    full, start = (resident + 1) * shared > tile.room_bytes and 2 * programs > tile.sm_count, 0.0
    if full:
        start = _START_US if not late and (persistent or each <= resident) else 0.0
        memory_us *= 1 + left * _UNEVEN * max(0.0, tile.sm_count / programs - 1)
    splits_us, mhz = _splits_us(tile, splits), tile.mhz
    return Terms(
        us=LAUNCH_US + start + _overlapped((ramp + store + loop) / mhz, memory_us) + splits_us,
        memory=once / tile.bytes_per_us,
        again=memory_us - once / tile.bytes_per_us,
        products=each * steps * tile.products / mhz,
        intake=each * steps * tile.intake / mhz,
        latency=turns * steps * waits / mhz,
        barriers=turns * steps * barriers / mhz,
        ramp=ramp / mhz,
        store=store / mhz,
        splits=splits_us,
        beyond_m=tile.beyond_m,
        beyond_n=tile.beyond_n,
        steps=steps,
        programs=programs,
        each=each,
        resident=resident,
        shared_bytes=shared,
        full=full,
    )


def least_us(tile: Tile, splits: int) -> float:
    """What a launch of so many splits takes at least, whatever its pipeline and the order of its tiles."""
    programs = tile.blocks * splits * tile.loop.products
    each, steps = -(-programs // tile.sm_count), -(-tile.steps // splits)
    cycles = _TILE_CYCLES[tile.loop.by_tma] + each * tile.store / 2
    cycles += steps * max(each * tile.busy, tile.alone, tile.issue)
    memory_us = (tile.once_bytes + _LATE * (tile.read_bytes - tile.once_bytes)) / tile.bytes_per_us
    return LAUNCH_US + _overlapped(cycles / tile.mhz, memory_us) + _splits_us(tile, splits)


def split_us(splits: int, tile_sums: int, mhz: float, *, by_tma: bool, least: float = 0.0) -> float:
    """Every split writes its sums; the last program of a tile reads them all, one after the other.

    Args:
        splits, tile_sums: SPLIT_K, and elements of a tile.
        mhz: the clock.
        by_tma: whether descriptors load the operands.
        least: cycles of one part at least.
    """
    if splits == 1:
        return 0.0
    return (_SPLIT_CYCLES + (splits + 1) * max(least, tile_sums * 4 / _PARTIAL_BYTES[by_tma])) / mhz


def _splits_us(tile: Tile, splits: int) -> float:
    """What it costs to add up the parts of sums that are split."""
    if tile.loop.in_cluster:
        return _CLUSTER_BLOCK_US * splits
    least = _PART_CYCLES if tile.loop.simt else 0.0
    return split_us(splits, tile.rows * tile.width, tile.mhz, by_tma=tile.loop.by_tma, least=least)


def _waits(tile: Tile, stages: int, steps: int) -> tuple[float, float]:
    """Cycles that a step along K waits for its loads, and those of its barriers.

    That is latency over the loads in flight (Little's law), or the issue of its loads.
    """
    by_tma, specialized = tile.loop.by_tma, tile.loop.specialized
    # Where all steps fit, none is awaited.
    ahead = stages if tile.loop.in_cluster and steps <= stages else stages - tile.held
    waits = max(tile.latency / max(1, ahead), tile.issue)
    by_one_warp = specialized or tile.loop.in_cluster
    return waits, _SPECIALIZED_STEP_CYCLES if by_one_warp else _STEP_CYCLES[by_tma]


def _alone(tile: Tile, stages: int, waits: float) -> float:
    """Cycles of one step along K of one program by itself: what it waits for, or its multiply-adds."""
    # Loads and multiply-adds alternate with one stage, or two where wgmma still reads one as the other lands.
    in_turns = stages == 1 or (stages == 2 and tile.asynchronous)
    return waits + _IN_TURNS * tile.alone if in_turns else max(waits, tile.alone)


def _memory_bytes(tile: Tile, wave: float, group: int, each: int) -> float:
    """What a launch reads and writes of device memory, and as much as what else it waits for there is worth.

    Beside what follows from a tile alone: what each wave of tiles reads of operands that no cache holds; and boxes
    beyond the one small tile of an extent, but where programs hide each other's.

    Args:
        tile: what follows from the tile alone.
        wave: tiles at once.
        group: GROUP_SIZE_M.
        each: programs of the fullest multiprocessor.
    """
    total = tile.read_bytes if each > 2 else tile.read_bytes + tile.beyond_bytes
    if tile.once_bytes < tile.cached_bytes:
        return total
    group = min(max(1, group), tile.tiles_m)
    columns = min(max(1.0, wave / group), tile.tiles_n)
    rows = min(group * max(1.0, wave / (group * tile.tiles_n)), tile.tiles_m)
    tiles = tile.tiles_m * tile.tiles_n
    most = tiles * (tile.rows + tile.width)
    read = min(tiles / wave * (rows * tile.rows + columns * tile.width), most) * tile.row_bytes
    return total + max(0.0, read - tile.once_bytes)


def _overlapped(one_us: float, other_us: float) -> float:
    """The longer of two times, and of the shorter as much as it does not hide."""
    shorter, longer = (one_us, other_us) if one_us < other_us else (other_us, one_us)
    both: float = (1 + (shorter / longer) ** _SHARPNESS) ** (1 / _SHARPNESS)
    return longer * both
