"""Copies one or two matrices into padded rows, and counts complete chunks for the product that runs concurrently."""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import count_blocks
from tuner.kernels.gemm.hopper.arrivals import arrive
from tuner.kernels.gemm.padded.copy_jit import copy_tile


@triton.jit(
    do_not_specialize=["columns", "lead", "first_rows", "first_row_stride", "second_rows", "second_row_stride"],
)
def copy_ahead_kernel(  # noqa: ANN201, PLR0917  jit bodies take no such annotation
    first,
    first_target,
    second,
    second_target,
    counters,
    columns,
    lead,
    first_rows,
    first_row_stride,
    second_rows,
    second_row_stride,
    FIRST_VECTOR: tl.constexpr,
    SECOND_VECTOR: tl.constexpr,
    FIRST_SHIFTED: tl.constexpr,
    SECOND_SHIFTED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Do as `copy_jit.copy_kernel` does for matrices whose rows run along K; all of `second` is None for one matrix.

    BLOCK_COLUMNS: columns of a chunk. Programs take the tiles of a chunk's rows in `first`, then of those in `second`,
    and then go on to the next chunk.
    """
    tl.extra.cuda.gdc_launch_dependents()
    first_down = count_blocks(first_rows, BLOCK_ROWS)
    tiles_down = first_down
    if second is not None:
        tiles_down += count_blocks(second_rows, BLOCK_ROWS)
    for tile in range(tl.program_id(0), tiles_down * count_blocks(lead, BLOCK_COLUMNS), tl.num_programs(0)):
        chunk = tile // tiles_down
        down = tile % tiles_down
        if down < first_down:
            copy_tile(
                *(first, first_target, down, chunk),
                *(first_rows, columns, first_row_stride, 1, lead),
                *(FIRST_VECTOR, FIRST_SHIFTED, BLOCK_ROWS, BLOCK_COLUMNS),
            )
        elif second is not None:
            copy_tile(
                *(second, second_target, down - first_down, chunk),
                *(second_rows, columns, second_row_stride, 1, lead),
                *(SECOND_VECTOR, SECOND_SHIFTED, BLOCK_ROWS, BLOCK_COLUMNS),
            )
        arrive(counters, chunk)
