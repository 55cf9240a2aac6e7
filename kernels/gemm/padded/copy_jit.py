"""Copies one or two matrices, in one launch, into rows whose length in memory is a multiple of 128 bytes.

`copy_ahead_kernel` also counts complete chunks, for a product that runs concurrently.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import count_blocks, known_multiple
from tuner.kernels.gemm.hopper.arrivals import arrive


@triton.jit
def copy_elements(  # noqa: ANN201, PLR0917  jit bodies take no such annotation
    source, target, size, strides, VECTOR: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):
    """Copy a tile with any strides, VECTOR elements at a time."""
    rows, columns = size
    row_stride, column_stride, lead = strides
    # A store has as many bytes as a load, and at least 4. The compiler gives each thread that many neighbours in loads
    # too, so wider stores would scatter a warp's loads of single elements over many more lines.
    UNIT: tl.constexpr = max(VECTOR, 32 // source.dtype.element_ty.primitive_bitwidth)
    offs_row = tl.arange(0, BLOCK_ROWS)
    offs_column = tl.arange(0, BLOCK_COLUMNS)
    inside = (offs_row < rows)[:, None]
    row = offs_row.to(tl.int64)[:, None]
    column = offs_column.to(tl.int64)[None, :]
    values = tl.load(
        source + row * row_stride + column * column_stride,
        mask=inside & (offs_column < known_multiple(columns, VECTOR))[None, :],
        other=0,
        # The source is read only once, and should leave the L2 to the copy, which the GEMM reads next.
        eviction_policy="evict_first",
    )
    to = target + row * lead + column
    tl.store(to, values, mask=inside & (offs_column < known_multiple(columns + UNIT - 1, UNIT))[None, :])


@triton.jit
def copy_shifted(  # noqa: ANN201, PLR0917
    source, target, size, row_stride, lead, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr
):
    """Copy a tile of contiguous rows with any alignment, by reading aligned words and shifting them into place.

    16 bytes of the copy come from one or two neighbouring 16-byte words of the source. A row's first and last word may
    extend beyond the row by less than 16 bytes.
    """
    rows, columns = size
    SIZE: tl.constexpr = source.dtype.element_ty.primitive_bitwidth // 8
    WORDS: tl.constexpr = BLOCK_COLUMNS * SIZE // 8
    row = tl.arange(0, BLOCK_ROWS).to(tl.int64)[:, None]
    # Two words, 16 bytes, are read or masked together.
    pair = tl.arange(0, WORDS)[None, :] // 2 * 16
    begin = source.to(tl.int64) + row * row_stride * SIZE
    aligned = begin // 16 * 16
    shift = ((begin - aligned) * 8).to(tl.int32)
    length = tl.where(row < rows, columns * SIZE, 0).to(tl.int32)
    there = tl.where(length > 0, length + shift // 8, 0)
    words = tl.multiple_of(aligned.to(tl.pointer_type(tl.uint64)), (16, 16)) + tl.arange(0, WORDS)[None, :]
    near = tl.load(words, mask=pair < there, other=0, eviction_policy="evict_first")
    far = tl.load(words + 2, mask=pair + 16 < there, other=0, eviction_policy="evict_first")
    first, second = near.reshape(BLOCK_ROWS, WORDS // 2, 2).split()
    third, fourth = far.reshape(BLOCK_ROWS, WORDS // 2, 2).split()
    by_word = shift >= 64
    low = tl.where(by_word, second, first)
    middle = tl.where(by_word, third, second)
    high = tl.where(by_word, fourth, third)
    bits = (shift % 64).to(tl.uint64)
    # Shift twice, because for bits of 0 a single shift by 64 would be undefined.
    left = (low >> bits) | (middle << (63 - bits) << 1)
    right = (middle >> bits) | (high << (63 - bits) << 1)
    values = tl.join(left, right).reshape(BLOCK_ROWS, WORDS)
    to = target.to(tl.pointer_type(tl.uint64)) + row * lead * SIZE // 8 + tl.arange(0, WORDS)[None, :]
    tl.store(to, values, mask=pair < length)


@triton.jit
def copy_tile(  # noqa: ANN201, PLR0917
    source,
    target,
    down,
    across,
    rows,
    columns,
    row_stride,
    column_stride,
    lead,
    VECTOR: tl.constexpr,
    SHIFTED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Copy the tile in row `down` and column `across` of tiles; the copy's values beyond `columns` are undefined."""
    SIZE: tl.constexpr = source.dtype.element_ty.primitive_bitwidth // 8
    lead = known_multiple(lead, 128 // SIZE)
    row_stride = known_multiple(row_stride, VECTOR)
    start_row = down * BLOCK_ROWS
    start_column = across * BLOCK_COLUMNS
    first = source + start_row.to(tl.int64) * row_stride + start_column.to(tl.int64) * column_stride
    to = target + start_row.to(tl.int64) * lead + start_column
    tile_rows = min(rows - start_row, BLOCK_ROWS)
    tile_columns = min(columns - start_column, BLOCK_COLUMNS)
    by_elements = True
    if SHIFTED:
        begin = source.to(tl.int64)
        end = begin + ((rows - 1).to(tl.int64) * row_stride + columns) * SIZE
        low = first.to(tl.int64)
        high = low + ((tile_rows - 1).to(tl.int64) * row_stride + tile_columns) * SIZE
        # The first and the last word of the matrix may extend beyond it.
        by_elements = (low // 16 * 16 < begin) | ((high + 15) // 16 * 16 > end)
    if by_elements:
        strides = (row_stride, column_stride, lead)
        copy_elements(first, to, (tile_rows, tile_columns), strides, VECTOR, BLOCK_ROWS, BLOCK_COLUMNS)
    else:
        copy_shifted(first, to, (tile_rows, tile_columns), row_stride, lead, BLOCK_ROWS, BLOCK_COLUMNS)


@triton.jit(
    do_not_specialize=[
        *("first_rows", "first_columns", "first_row_stride", "first_lead"),
        *("second_rows", "second_columns", "second_row_stride", "second_lead"),
    ],
    # Of column strides, only 1 is compiled in.
    do_not_specialize_on_alignment=["first_column_stride", "second_column_stride"],
)
def copy_kernel(  # noqa: ANN201, PLR0917
    first,
    first_target,
    second,
    second_target,
    first_rows,
    first_columns,
    first_row_stride,
    first_column_stride,
    first_lead,
    second_rows,
    second_columns,
    second_row_stride,
    second_column_stride,
    second_lead,
    FIRST_VECTOR: tl.constexpr,
    SECOND_VECTOR: tl.constexpr,
    FIRST_SHIFTED: tl.constexpr,
    SECOND_SHIFTED: tl.constexpr,
    FIRST_BLOCK_ROWS: tl.constexpr,
    FIRST_BLOCK_COLUMNS: tl.constexpr,
    SECOND_BLOCK_ROWS: tl.constexpr,
    SECOND_BLOCK_COLUMNS: tl.constexpr,
):
    """Copy [rows, columns] with any strides into rows `lead` elements apart; all of `second` is None for one matrix.

    FIRST_VECTOR, SECOND_VECTOR: elements that divide a matrix's columns and row stride, and 16 bytes. `lead` is a
    multiple of 128 bytes. FIRST_SHIFTED, SECOND_SHIFTED: columns are contiguous and are read by `copy_shifted`.
    """
    tile = tl.program_id(0)
    tiles_across = count_blocks(first_lead, FIRST_BLOCK_COLUMNS)
    tiles = count_blocks(first_rows, FIRST_BLOCK_ROWS) * tiles_across
    if tile < tiles:
        copy_tile(
            *(first, first_target, tile // tiles_across, tile % tiles_across),
            *(first_rows, first_columns, first_row_stride, first_column_stride, first_lead),
            *(FIRST_VECTOR, FIRST_SHIFTED, FIRST_BLOCK_ROWS, FIRST_BLOCK_COLUMNS),
        )
    elif second is not None:
        tiles_across = count_blocks(second_lead, SECOND_BLOCK_COLUMNS)
        copy_tile(
            *(second, second_target, (tile - tiles) // tiles_across, (tile - tiles) % tiles_across),
            *(second_rows, second_columns, second_row_stride, second_column_stride, second_lead),
            *(SECOND_VECTOR, SECOND_SHIFTED, SECOND_BLOCK_ROWS, SECOND_BLOCK_COLUMNS),
        )


@triton.jit(
    do_not_specialize=["columns", "lead", "first_rows", "first_row_stride", "second_rows", "second_row_stride"],
)
def copy_ahead_kernel(  # noqa: ANN201, PLR0917
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
    """Do as `copy_kernel` does for matrices whose rows run along K; all of `second` is None for one matrix.

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
