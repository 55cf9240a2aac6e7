"""Copies one or two matrices [extent, K], in one launch, into rows along K whose length is a multiple of 128 bytes."""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import count_blocks, known_multiple


@triton.jit
def copy_tile(  # noqa: ANN201, PLR0917  jit bodies take no such annotation
    source,
    target,
    tile,
    rows,
    columns,
    row_stride,
    column_stride,
    lead,
    VECTOR: tl.constexpr,
    ACROSS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Copy a tile, [BLOCK_ROWS, BLOCK_COLUMNS], of a matrix as it is stored, [rows, columns].

    Elements of a row are neighbours in memory, if any are. ACROSS: whether rows lie along K, so that the copy is the
    transpose. What a row of the copy has beyond its end is undefined.
    """
    UNIT: tl.constexpr = 16 * 8 // source.dtype.element_ty.primitive_bitwidth
    lead = known_multiple(lead, 8 * UNIT)
    tiles = count_blocks(columns, BLOCK_COLUMNS)
    row = tile // tiles * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tile % tiles * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    offsets = row.to(tl.int64)[:, None] * known_multiple(row_stride, VECTOR)
    offsets += column.to(tl.int64)[None, :] * column_stride
    inside = (row < rows)[:, None] & (column < known_multiple(columns, VECTOR))[None, :]
    # The source is read only once, and should leave the L2 to the copy, which the product reads next.
    values = tl.load(source + offsets, mask=inside, other=0, eviction_policy="evict_first")
    if ACROSS:
        to = target + column.to(tl.int64)[:, None] * lead + row[None, :]
        there = (column < columns)[:, None] & (row < known_multiple(rows + UNIT - 1, UNIT))[None, :]
        tl.store(to, tl.trans(values), mask=there)
    else:
        to = target + row.to(tl.int64)[:, None] * lead + column[None, :]
        there = (row < rows)[:, None] & (column < known_multiple(columns + UNIT - 1, UNIT))[None, :]
        tl.store(to, values, mask=there)


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
    FIRST_ACROSS: tl.constexpr,
    SECOND_VECTOR: tl.constexpr,
    SECOND_ACROSS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Copy the first matrix, and the second if there is one, a tile for each program.

    first_rows to first_column_stride: of the matrix as it is stored; the same for second_*. first_lead: elements from
    one row of its copy to the next. FIRST_VECTOR: divides its columns and its row stride.
    """
    tile = tl.program_id(0)
    tiles = count_blocks(first_rows, BLOCK_ROWS) * count_blocks(first_columns, BLOCK_COLUMNS)
    if second is None or tile < tiles:
        copy_tile(
            *(first, first_target, tile, first_rows, first_columns, first_row_stride, first_column_stride),
            *(first_lead, FIRST_VECTOR, FIRST_ACROSS, BLOCK_ROWS, BLOCK_COLUMNS),
        )
    else:
        copy_tile(
            *(second, second_target, tile - tiles, second_rows, second_columns, second_row_stride),
            *(second_column_stride, second_lead, SECOND_VECTOR, SECOND_ACROSS, BLOCK_ROWS, BLOCK_COLUMNS),
        )
