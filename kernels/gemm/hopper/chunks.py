"""Operands that do not run along K. 64 of their rows or columns are a chunk: a row of 128 bytes for each element of K.

TMA loads whole chunks. A row that does not begin at a multiple of 128 bytes crosses from one line of the L2 to the next
and is requested in parts: most rows of a matrix whose rows have another length, and those of a tile that begins within
a chunk.
"""

from __future__ import annotations

import functools

from tuner.problem import Problem, dtype

CHUNK = 64
_LINE_BYTES = 128
_SECTOR_BYTES = 32
_PERIOD = _LINE_BYTES // 16
"""Tiles, or rows, after which these begin at the same place of a line: all begin at multiples of 16 bytes."""
_CROSSING, _ODD = 1.6, 2.2
"""What a row costs that crosses lines, and one that begins at an odd multiple of 16 bytes, relative to another row.

Chosen by what 136 products drawn in layout tn took on an H200 with tiles of 64 to 256 rows. Loads alone take 1.7, and
2.1 to 2.3 times as long, if any row of a chunk is such a one (2 December 2026, by hand, not kept)."""


def loaded(columns: int, computed: Problem) -> int:
    """Columns of B that a stage loads, 128 bytes of each, for a tile with so many: whole chunks, if not along K."""
    return columns if computed.layout[1] == "t" else -(-columns // CHUNK) * CHUNK


def requested(columns: int, computed: Problem) -> float:
    """The same, weighted by what rows cost in the mean, in the tile whose rows cost most."""
    costs = _costs(columns, computed)
    return loaded(columns, computed) * sum(costs) / len(costs)


def awaited(columns: int, computed: Problem) -> float:
    """The same, weighted by the row that costs most: what a chunk's load takes alone."""
    return loaded(columns, computed) * max(_costs(columns, computed))


@functools.lru_cache(maxsize=4096)
def _costs(columns: int, computed: Problem) -> tuple[float, ...]:
    """What the rows of a chunk cost, in the tile whose rows cost most."""
    if computed.layout[1] == "t":
        return (1.0,)
    size = dtype.ITEMSIZE[computed.b_dtype]
    tiles = min(_PERIOD, -(-computed.n // columns))
    starts = {tile * columns * size % _LINE_BYTES for tile in range(tiles)}
    return max((_costs_from(start, computed.n * size) for start in starts), key=sum)


def _costs_from(start: int, pitch: int) -> tuple[float, ...]:
    """What rows cost that lie `pitch` bytes apart, the first of which begins `start` bytes beyond a line."""
    begin = [(start + row * pitch) % _LINE_BYTES for row in range(_PERIOD)]
    return tuple(1.0 if at == 0 else _CROSSING if at % _SECTOR_BYTES == 0 else _ODD for at in begin)
