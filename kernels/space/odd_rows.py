"""What TMA's loads cost of rows that begin at odd multiples of 16 bytes, called odd rows here.

Half of their 128-byte lines touch one sector more, so that a line takes more than one request to the L2. Blocks of a
cluster that share an operand's loads share its requests.
"""

from __future__ import annotations

import functools

from tuner.problem import Problem, dtype

SECTOR_BYTES = 32
"""Bytes of a sector of the L2 (CUDA C++ Best Practices Guide, coalesced access to global memory)."""
_LINE_SECTORS = 4
_WORTH = 2.0
"""The cost of loading a whole line of an odd row, relative to another row's. Fitted on seven tiles of 3000x3000x3000
bf16, single and in clusters, measured on an H200 in November 2026 (docs/lessons.md, Slow rows)."""
LATER = 1.25
"""The latency of a load of odd rows, relative to other rows'. Measured on an H200 in November 2026 with tiles of
128x320 and three stages, single and in pairs, for 3000x3000x3000 and 5000x5000x5000 bf16."""


@functools.lru_cache(maxsize=1024)
def odd(problem: Problem) -> tuple[bool, bool]:
    """Whether A's rows are odd, and whether B's are."""
    a_extent = problem.k if problem.layout[0] == "n" else problem.m
    b_extent = problem.k if problem.layout[1] == "t" else problem.n
    size = dtype.ITEMSIZE[problem.a_dtype]
    return a_extent * size % SECTOR_BYTES != 0, b_extent * size % SECTOR_BYTES != 0


def requested(problem: Problem, rows: float, columns: float, length: int, *, ctas: int, share_b: bool) -> float:
    """Rows of both operands that one step of a tile requests from the L2, odd rows weighted by their cost.

    Args:
        problem: the problem as the kernel sees it.
        rows, columns, length: the tile's size along M, N and K.
        ctas: blocks of a cluster, which share the loads of A or, with `share_b`, those of B.
        share_b: SHARE_B.
    """
    if not any(odd(problem)):
        return rows + columns
    sharing = (1, ctas) if share_b else (ctas, 1)
    # Every load of a line, or of a part of a line, touches one sector more.
    taken = length * dtype.ITEMSIZE[problem.a_dtype] // SECTOR_BYTES
    sectors = max(1, min(taken, _LINE_SECTORS))
    worth = _WORTH * (1 + 1 / sectors) / (1 + 1 / _LINE_SECTORS)
    more = [(worth - 1) * is_odd / blocks for is_odd, blocks in zip(odd(problem), sharing, strict=True)]
    return rows * (1 + more[0]) + columns * (1 + more[1])
