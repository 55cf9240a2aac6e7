"""The search space of `any_width`: tiles that fill the device's waves at least as well as those of powers of two."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.gemm.any_tile import scaled_steps
from tuner.kernels.gemm.hopper import chunks, cluster_sizes
from tuner.kernels.gemm.hopper.resources import OTHER_BYTES, ROW_BYTES, by_steps, elsewhere, row_length, warpgroups
from tuner.kernels.gemm.hopper.rules import WIDTHS
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.space import odd_rows, refinements, tile_rules
from tuner.kernels.space.rule import rule
from tuner.kernels.space.tile_rules import SIDES
from tuner.problem import Problem, dtype

NAME = "any_width"
_FEWEST_ROWS = 128
"""Rows of the smallest tile."""
_LENGTH = 64
"""BLOCK_SIZE_K: rows of 128 bytes."""
_DTYPES = ("bfloat16", "float16")
_OUT_DTYPES = ("bfloat16", "float16", "float32")
_WARPS = {128: 8, 192: 12, 256: 8}
"""Warps that multiply, by rows of a tile."""
_WIDTHS = (*range(144, 256, 16),)
"""Columns of tiles. 128 and 256 are as fast in `warp_specialized`, and narrower tiles were slower, but for one."""
_NARROW = {80: range(129, 257), 96: range(217, 257), 112: range(217, 257)}
"""Columns of tiles that fill one wave with two tiles of 128 rows, and how many rows of A they are tried for.

Source: benchmarks/results/narrow-widths-h100.json, where 128x80 takes 0.91 to 1.00 of the time of the table's config
for 208 and 256 rows of 4608 and 5120 columns; for 96 and 112 narrow-tiles-h200.json.
"""
_OLDER_NARROW, _FAST_MEMORY = (80,), 4e6
"""Those tried on every device, and bytes a microsecond of one where all are: on an H100 96 and 112 gained nothing."""
EXCHANGED, EXCHANGED_ROWS = (64, 128, 192), 256
"""Columns of the tiles of `any_height` that have all rows of A, or half of them, and up to how many rows those are."""
_ONE_WGMMA = 256
_WHOLE = 192
"""Columns of the widest wgmma of three warpgroups."""
_MOST_SUMS = {2: 192, 3: 112}
"""The most sums of a multiplying thread, by the number of warpgroups: its registers are 232 or 160."""
_LARGEST = 128 * 384
"""Sums of the largest tile of `warp_specialized`."""
_SMALL = 1.05
"""How many times as long as 128x256 a tile of 64x256 takes for as many sums of a multiprocessor (geomean over
benchmarks/suites/last-wave.csv, measured on an H200)."""
_PAIR = 2
_GROUPS = (8, 16)
FEW_STAGES, _MOST_STAGES = 4, 8
ENOUGH_STAGES = 5
"""Stages from which a second buffer gains more than another stage (benchmarks/results/ring-depths-h200.json)."""
_BUFFER = 64 * 64
"""Elements of a buffer through which a warpgroup stores."""
_SCRATCH = 16
"""Columns of 64 rows that a warpgroup passes through shared memory at a time where C is stored from registers."""
_OPTIONS = (refinements.NUM_CTAS, refinements.SHARE_B)
_AXES: Mapping[str, tuple[Value, ...]] = {
    "BLOCK_SIZE_M": tuple(_WARPS),
    "BLOCK_SIZE_N": (*_NARROW, *_WIDTHS),
    "num_warps": tuple(sorted({*_WARPS.values()})),
    "BLOCK_SIZE_K": (_LENGTH,),
    "GROUP_SIZE_M": (1,),
    "num_stages": (1,),
    "launch_pdl": (True,),
}
"""Every parameter's values, except that `expand` finds those of the axes with a single value here."""


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    return unserved(problem, device, _DTYPES) or _across(problem) or _too_small(problem)


def unserved(problem: Problem, device: Device, dtypes: Sequence[str]) -> str | None:
    """Why this kernel's program cannot serve a problem's operands on a device, or None; dtypes: of both operands."""
    if reason := unsuited(problem, device, dtypes):
        return reason
    if by_steps(problem):
        return "it sums in the tensor cores alone: no registers are left for each step's products"
    return None


def unsuited(problem: Problem, device: Device, dtypes: Sequence[str]) -> str | None:
    """The same of a program that may add each step's products."""
    if reason := elsewhere(device) or cluster_sizes.untried() or tma_space.supports(problem, device):
        return reason
    if problem.a_dtype != problem.b_dtype or problem.a_dtype not in dtypes:
        return f"{problem.dtype_label}: it multiplies two operands of one dtype, {', '.join(dtypes)}"
    if problem.out_dtype not in _OUT_DTYPES:
        return f"{problem.out_dtype}: it stores {', '.join(_OUT_DTYPES)}"
    if problem.layout != "nt" and dtype.ITEMSIZE[problem.a_dtype] == 1:
        return f"layout {problem.layout}: of 8 bits wgmma reads both operands along K"
    shortest = row_length(problem) // 2
    few = f"K is {problem.k}: a stage along K would be more than half empty, it takes {shortest} or more"
    return few if problem.k < shortest else None


def _across(problem: Problem) -> str | None:
    return f"layout {problem.layout}: it is for operands along K" if problem.layout != "nt" else None


def _too_small(problem: Problem) -> str | None:
    if problem.m <= _FEWEST_ROWS:
        return f"M is {problem.m}: it is for more rows of A than the {_FEWEST_ROWS} of a tile"
    return f"N is {problem.n}: a tile has {_WIDTHS[0]} columns" if problem.n < _WIDTHS[0] else None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _AXES, RULES, expand=_expand, options=_OPTIONS)


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile with the deepest ring that fits, in every order of tiles; for odd rows also in pairs.

    The blocks of a pair share the loads of the larger side. A narrow tile is always tried in pairs, too, whose two
    tiles of rows share the columns of B.
    """
    tiles, columns = [config], config.integer("BLOCK_SIZE_N")
    if columns in _NARROW or any(odd_rows.odd(problem)):
        pair = config.replace(num_ctas=_PAIR)
        down = columns in _NARROW or columns > config.integer("BLOCK_SIZE_M")
        tiles.append(pair.replace(SHARE_B=True) if down else pair)
    rows = -(-problem.m // config.integer("BLOCK_SIZE_M"))
    for tile in tiles:
        for group in dict.fromkeys(min(group, rows) for group in _GROUPS):
            yield tile.replace(num_stages=deepest(tile, problem, device), GROUP_SIZE_M=group)


def is_narrow_pair(config: Config) -> bool:
    """Whether a config is a narrow tile in pairs that share its columns."""
    return config["BLOCK_SIZE_N"] in _NARROW and bool(config.get(refinements.SHARE_B, False))


def fills_waves(problem: Problem, device: Device) -> bool:
    """Whether no multiprocessor computes more with a tile of this kernel than with those of `warp_specialized`."""
    return _least(problem, device) <= _least_of_others(problem, device)


def turns(config: Config, problem: Problem, device: Device) -> int:
    """Buffers through which a warpgroup stores C, in alternation: two if they fit, 0 to store from registers."""
    return next((turns for turns in (2, 1) if _taken(config, problem, turns) <= device.shared_bytes), 0)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """An upper bound on a block's shared memory: the ring, its barriers, and the buffers through which C is stored."""
    return _taken(config, problem, turns(config, problem, device))


def in_halves(config: Config) -> bool:
    """Whether a config, as the device computes it, takes two wgmmas for all columns: see `wgmma_ptx.wgmmas_of`."""
    return warpgroups(config) == 3 and config.integer("BLOCK_SIZE_N") > _WHOLE


def ring_bytes(config: Config, problem: Problem) -> int:
    """Shared memory of the ring of stages."""
    rows = config.integer("BLOCK_SIZE_M") + chunks.loaded(config.integer("BLOCK_SIZE_N"), problem)
    return config.integer("num_stages") * (rows + scale_rows(problem)) * ROW_BYTES


def scale_rows(problem: Problem) -> int:
    """Rows of 128 bytes of a stage for block scales."""
    return int(scaled_steps.SCALE_ROWS) if problem.scaling == "block" else 0


def scratch_bytes(problem: Problem) -> int:
    """Shared memory through which a warpgroup stores 64 rows of C from registers."""
    return 64 * _SCRATCH * dtype.ITEMSIZE[problem.out_dtype]


def _taken(config: Config, problem: Problem, turns: int) -> int:
    stored = warpgroups(config) * (turns * _BUFFER * dtype.ITEMSIZE[problem.out_dtype] or scratch_bytes(problem))
    reserved = cluster_sizes.RESERVED_BYTES if refinements.NUM_CTAS in config else 0
    return ring_bytes(config, problem) + 16 * config.integer("num_stages") + stored + OTHER_BYTES + reserved


def deepest(
    config: Config, problem: Problem, device: Device, most: int = _MOST_STAGES, enough: int = ENOUGH_STAGES
) -> int:
    """The most stages beside two buffers for storing, or beside one where two leave fewer than `enough`.

    Three warpgroups may do without for a fourth stage, but in clusters, of which the first block alone would store.
    """
    stage = ring_bytes(config.replace(num_stages=1), problem) + 16

    def fitting(turns: int) -> int:
        return min(most, (device.shared_bytes - _taken(config.replace(num_stages=0), problem, turns)) // stage)

    count = fitting(2) if fitting(2) >= enough else fitting(1)
    by_registers = warpgroups(config) == 3 and refinements.NUM_CTAS not in config
    return fitting(0) if by_registers and count < FEW_STAGES else count


@rule("ring", "kernels/gemm/any_tile/any_width_jit.py: Triton places the largest allocation first", fatal=True)
def _ring_first(config: Config, problem: Problem, device: Device) -> str | None:
    return ring_not_first(config, problem, device)


def ring_not_first(config: Config, problem: Problem, device: Device) -> str | None:
    """Why Triton would not place the ring first, or None."""
    ring = ring_bytes(config, problem)
    others = shared_bytes(config, problem, device) - ring
    return f"a ring of {ring} bytes beside {others} others: it must be the most" if others >= ring else None


@rule("stored", "kernels/gemm/any_tile/any_width.py: a cluster's first block alone would store", fatal=True)
def _stored(config: Config, problem: Problem, device: Device) -> str | None:
    return without_buffers(config, problem, device)


def without_buffers(config: Config, problem: Problem, device: Device) -> str | None:
    """Why a config could not store what it computes, or None: three warpgroups alone store from registers."""
    if turns(config, problem, device):
        return None
    if warpgroups(config) == 3 and refinements.NUM_CTAS not in config:
        columns = config.integer("BLOCK_SIZE_N")
        odd = f"{config['num_stages']} stages leave no buffers, and registers store {_SCRATCH} accumulators at a time"
        return f"{odd}, {columns} are no multiple" if columns % _SCRATCH else None
    who = "clusters" if refinements.NUM_CTAS in config else f"{config['num_warps']} warps"
    return f"{who} with {config['num_stages']} stages, which leave no buffers to store through"


@rule("wide output", "compiled for sm_90: stored without TMA, 192x160 takes 245,836 bytes", fatal=True)
def _wide_output(config: Config, problem: Problem, device: Device) -> str | None:
    return too_wide_output(config, problem, device)


def too_wide_output(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    """Why three warpgroups store no float32: an output may have rows that TMA cannot write."""
    wide = dtype.ITEMSIZE[problem.out_dtype] == 4 and config.integer("num_warps") > 8
    return (
        f"{problem.out_dtype} from three warpgroups: without TMA it is stored through too much memory" if wide else None
    )


@rule("shape", "kernels/gemm/any_tile/any_width_jit.py; PTX ISA, wgmma.mma_async", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows, columns, warps = (config.integer(name) for name in (*SIDES, "num_warps"))
    if _WARPS.get(rows) != warps:
        return f"{rows} rows for {warps} warps: 128 or 256 for 8, 192 for 12"
    if config.integer(refinements.NUM_CTAS, _PAIR) != _PAIR:
        return f"clusters of {config[refinements.NUM_CTAS]}: only pairs were run so far"
    return no_step(columns, "columns", config, problem)


def no_step(width: int, side: str, config: Config, problem: Problem, unit: int = 16) -> str | None:
    """Why a config's step along K, whose wgmmas are so wide, is none of this kernel's, or None.

    unit: what the width must be a multiple of. C's rows are stored 16 elements at a time; its columns may be 8.
    """
    if width % unit or not 16 <= width <= _ONE_WGMMA:
        return f"{width} {side}: a multiple of {unit} up to {_ONE_WGMMA} is one wgmma"
    if (length := config.integer("BLOCK_SIZE_K")) != row_length(problem):
        row = f"{row_length(problem)} elements, {ROW_BYTES} bytes, are a row of shared memory"
        return f"BLOCK_SIZE_K is {length}: {row}"
    return "2 stages at least, to load while it multiplies" if config.integer("num_stages") < 2 else None


@rule(
    "registers",
    "compiled for sm_90: 192 sums a thread fit, 112 of three warpgroups",
    fatal=True,
    reads=(*SIDES, "num_warps"),
)
def _sums(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    return too_many_sums(config, _MOST_SUMS)


def too_many_sums(config: Config, most: Mapping[int, int]) -> str | None:
    """Why a config's sums do not fit a thread's registers, with the most by the number of warpgroups, or None."""
    groups = warpgroups(config)
    held = config.integer("BLOCK_SIZE_M") * config.integer("BLOCK_SIZE_N") / (128 * groups)
    return f"a thread would hold {held:g} sums, {most[groups]} fit" if held > most[groups] else None


@rule("widths", "measured: docs/lessons.md, Tiles of any width; the constants here", reads=SIDES)
def _widths(config: Config, problem: Problem, device: Device) -> str | None:
    columns, tried = config.integer("BLOCK_SIZE_N"), _widths_of(config.integer("BLOCK_SIZE_M"), problem, device)
    return f"{columns} columns: {', '.join(map(str, tried))} are tried" if columns not in tried else None


def _widths_of(rows: int, problem: Problem, device: Device) -> tuple[int, ...]:
    """Columns of tiles of so many rows that are worth trying."""
    narrow = (
        columns
        for columns, few in _NARROW.items()
        if rows == _FEWEST_ROWS
        and problem.m in few
        and 2 * -(-problem.n // columns) <= device.sm_count
        and (columns in _OLDER_NARROW or device.peak_bytes_per_us > _FAST_MEMORY)
    )
    return *narrow, *_WIDTHS


@rule("waves", "measured on an H200: docs/lessons.md, Tiles of any width", reads=SIDES)
def _waves(config: Config, problem: Problem, device: Device) -> str | None:
    """Keep tiles to problems where no multiprocessor computes more than with others; without any, keep the best."""
    rows, columns = (config.integer(name) for name in SIDES)
    sums = busiest(rows, columns, problem, device)
    least = max(_least(problem, device), _least_of_others(problem, device))
    if in_halves(config):
        least = min(least, _least_of_heights(problem, device))
    return f"{sums} sums of a multiprocessor, other tiles are worth {least:.0f}" if sums > least else None


@rule("idle blocks", "the shape itself: every block of a pair has a tile")
def _idle_blocks(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if refinements.NUM_CTAS not in config:
        return None
    extent, side = (problem.m, SIDES[0]) if config.get(refinements.SHARE_B, False) else (problem.n, SIDES[1])
    return f"one tile of {config[side]} covers {extent}" if extent <= config.integer(side) else None


def least_sums(problem: Problem, device: Device) -> float:
    """`busiest` of the tiles of this kernel and of `warp_specialized`, at best."""
    return min(_least(problem, device), _least_of_others(problem, device))


def busiest(rows: int, columns: int, problem: Problem, device: Device) -> int:
    """Sums of the multiprocessor that computes the most tiles."""
    tiles = -(-problem.m // rows) * -(-problem.n // columns)
    return rows * columns * -(-tiles // device.sm_count)


@functools.lru_cache(maxsize=1024)
def _least(problem: Problem, device: Device) -> float:
    """`busiest` of this kernel's tiles, at best; infinite where it does not serve the layout.

    Tiles of two wgmmas count only where those of `any_height` leave no less.
    """
    if _across(problem):
        return math.inf
    wide, heights = dtype.ITEMSIZE[problem.out_dtype] == 4, _least_of_heights(problem, device)
    counted = []
    for rows, warps in _WARPS.items():
        for columns in _widths_of(rows, problem, device):
            three, sums = warps > _WARPS[128], busiest(rows, columns, problem, device)
            fits = rows * columns <= 32 * warps * _MOST_SUMS[warps // 4] and not (wide and three)
            if fits and (sums <= heights or not (three and columns > _WHOLE)):
                counted.append(sums)
    return min(counted)


@functools.lru_cache(maxsize=1024)
def _least_of_others(problem: Problem, device: Device) -> float:
    """`busiest` of the tiles of `warp_specialized`, at best, those of 64 rows by what they are worth."""
    widths = (128, 256, *(columns + rest for columns, rest in WIDTHS))
    tall = [(rows, columns) for rows in (128, 256) for columns in widths if rows * columns <= _LARGEST]
    return min(
        *(busiest(rows, columns, problem, device) for rows, columns in (*tall, (192, 192))),
        *(_SMALL * busiest(64, columns, problem, device) for columns in widths),
    )


@functools.lru_cache(maxsize=1024)
def _least_of_heights(problem: Problem, device: Device) -> float:
    """`busiest` of the tiles of `any_height` that have all rows of A, at best."""
    rows = -(-problem.m // 16) * 16
    if rows > EXCHANGED_ROWS:
        return math.inf
    return min(busiest(rows, columns, problem, device) for columns in EXCHANGED)


RULES = (
    tile_rules.parameters(lambda *_: _AXES, _OPTIONS),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/any_tile/any_width_space.py"),
    _shape,
    _ring_first,
    _stored,
    _wide_output,
    _sums,
    _idle_blocks,
    _widths,
    _waves,
)
