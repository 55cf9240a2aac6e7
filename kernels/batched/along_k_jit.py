"""Copies the matrices of a batch, in one launch, into rows along K whose length is a multiple of 128 bytes."""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import count_blocks, known_multiple
from tuner.kernels.gemm.k_major.copy_jit import copy_tile


@triton.jit(do_not_specialize=["rows", "columns", "between", "row_stride", "lead"])
def copy_kernel(  # noqa: ANN201, PLR0917  jit bodies take no such annotation
    source,
    target,
    rows,
    columns,
    between,
    row_stride,
    lead,
    VECTOR: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Transpose matrices [K, extent], whose rows are contiguous, into [extent, K], a tile for each program.

    rows, columns: K and the extent.
    between, lead: elements from one matrix to the next, and from one row of the target to the next.
    VECTOR: divides columns, row_stride and between.
    """
    tiles = count_blocks(rows, BLOCK_ROWS) * count_blocks(columns, BLOCK_COLUMNS)
    index = (tl.program_id(0) // tiles).to(tl.int64)
    UNIT: tl.constexpr = 128 * 8 // source.dtype.element_ty.primitive_bitwidth
    copy_tile(
        source + index * known_multiple(between, VECTOR),
        target + index * columns * known_multiple(lead, UNIT),
        *(tl.program_id(0) % tiles, rows, columns, row_stride, 1, lead, VECTOR, True, BLOCK_ROWS, BLOCK_COLUMNS),
    )
