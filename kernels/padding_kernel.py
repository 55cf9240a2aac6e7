"""One or two matrices copied into rows whose length in memory is a multiple of 128 bytes, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.blocks import await_predecessor, count_blocks, known_multiple


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
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """The tile-th tile; zeros from `columns` to `lead`, so that stores are whole vectors where loads cannot be."""
    # Bytes of one store: as many as of one load, 4 at least. The compiler gives a thread that many neighbours in loads
    # too, so that wider stores would scatter a warp's loads of single elements over many more lines.
    UNIT: tl.constexpr = max(VECTOR, 32 // source.dtype.element_ty.primitive_bitwidth)
    columns = known_multiple(columns, VECTOR)
    row_stride = known_multiple(row_stride, VECTOR)
    lead = known_multiple(lead, UNIT)
    tiles_across = count_blocks(lead, BLOCK_COLUMNS)
    start_row = tile // tiles_across * BLOCK_ROWS
    start_column = tile % tiles_across * BLOCK_COLUMNS
    offs_row = tl.arange(0, BLOCK_ROWS)
    offs_column = tl.arange(0, BLOCK_COLUMNS)
    inside = (offs_row < rows - start_row)[:, None]
    row = (start_row + offs_row).to(tl.int64)[:, None]
    column = (start_column + offs_column).to(tl.int64)[None, :]
    values = tl.load(
        source + row * row_stride + column * column_stride,
        mask=inside & (offs_column < columns - start_column)[None, :],
        other=0,
        # Read once; what is written is read next, by the GEMM, and should find room in the L2.
        eviction_policy="evict_first",
    )
    tl.store(target + row * lead + column, values, mask=inside & (offs_column < lead - start_column)[None, :])


@triton.jit(
    do_not_specialize=[
        *("first_rows", "first_columns", "first_row_stride", "first_lead"),
        *("second_rows", "second_columns", "second_row_stride", "second_lead"),
    ],
    # A column stride of 1 is compiled in, no other value.
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
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Copy [rows, columns] of any strides into rows `lead` elements apart; all of `second` is None for one matrix.

    FIRST_VECTOR, SECOND_VECTOR: elements that divide a matrix's columns and row stride, and 16 bytes. `lead` is a
    multiple of 128 bytes.
    """
    await_predecessor(PDL)
    tile = tl.program_id(0)
    tiles = count_blocks(first_rows, BLOCK_ROWS) * count_blocks(first_lead, BLOCK_COLUMNS)
    if tile < tiles:
        copy_tile(
            first,
            first_target,
            tile,
            first_rows,
            first_columns,
            first_row_stride,
            first_column_stride,
            first_lead,
            FIRST_VECTOR,
            BLOCK_ROWS,
            BLOCK_COLUMNS,
        )
    elif second is not None:
        copy_tile(
            second,
            second_target,
            tile - tiles,
            second_rows,
            second_columns,
            second_row_stride,
            second_column_stride,
            second_lead,
            SECOND_VECTOR,
            BLOCK_ROWS,
            BLOCK_COLUMNS,
        )
