"""Adds the parts of sums that `tma.jit.matmul_kernel` split, in a launch of its own, on all multiprocessors."""

from __future__ import annotations

import triton.language as tl

from tuner.kernels.base import blocks
from tuner.kernels.gemm.tma.tile import write


@blocks.any_size
def sum_kernel(  # noqa: ANN201, PLR0917  jit bodies take no such annotation
    partials_ptr,
    c_ptr,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    SPLITS,
    M,
    N,
    stride_cm,
    stride_cn,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    ROWS: tl.constexpr,
    A_UNIT: tl.constexpr,
    B_UNIT: tl.constexpr,
    C_TRANSPOSED: tl.constexpr,
    C_VECTOR: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    TOGETHER: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute ROWS rows of a tile of C per program from the parts of its sums, added in order.

    partials_ptr: [tiles, SPLITS, BLOCK_SIZE_M, BLOCK_SIZE_N], of tiles that lie as in `tma.jit.matmul_kernel`.
    A_UNIT, B_UNIT: what the first row and column of a tile that ends with C are multiples of; a B_UNIT of 0 if its
        columns lie beyond C's end instead.
    TOGETHER: parts that are loaded at a time.
    """
    SLICES: tl.constexpr = BLOCK_SIZE_M // ROWS
    SUMS: tl.constexpr = BLOCK_SIZE_M * BLOCK_SIZE_N
    tile = tl.program_id(0) // SLICES
    row = tl.program_id(0) % SLICES * ROWS
    tiles_n = blocks.count_blocks(N, BLOCK_SIZE_N)
    pid_m, pid_n = blocks.grouped(tile, blocks.count_blocks(M, BLOCK_SIZE_M), tiles_n, 1)
    start_m = blocks.moved_within(pid_m * BLOCK_SIZE_M, M, BLOCK_SIZE_M, A_UNIT)
    start_n = pid_n * BLOCK_SIZE_N
    if B_UNIT > 0:
        start_n = blocks.moved_within(start_n, N, BLOCK_SIZE_N, B_UNIT)
    within = (row + tl.arange(0, ROWS))[:, None] * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)[None, :]
    first = partials_ptr + tl.cast(tile, tl.int64) * SPLITS * SUMS
    blocks.await_predecessor(PDL)
    sums = tl.zeros((ROWS, BLOCK_SIZE_N), dtype=partials_ptr.dtype.element_ty)
    for start in range(0, SPLITS, TOGETHER):
        for offset in tl.static_range(TOGETHER):
            there = tl.zeros_like(within) + (start + offset) < SPLITS
            part = first + (start + offset) * SUMS
            sums += tl.load(part + within, mask=there, other=0, cache_modifier=".cg")
    M, N, stride_cm, stride_cn = blocks.multiples_known(M, N, stride_cm, stride_cn, C_VECTOR, C_TRANSPOSED)
    write(
        *(c_ptr, sums, (bias_ptr, a_scale_ptr, b_scale_ptr), (start_m + row, start_n), (M, N)),
        *((stride_cm, stride_cn), C_TRANSPOSED, SCALING, ACTIVATION),
    )
