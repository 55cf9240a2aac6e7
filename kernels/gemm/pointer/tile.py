"""Computes one tile of one product from operands loaded through pointers: the loop that all pointer kernels share.

The software pipeline over K and the masks follow Triton's tutorial 03; comments name the differences.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from tuner.kernels.base import blocks
from tuner.kernels.base.epilogue import finish


@dataclass(frozen=True)
class Fixed:
    """A kernel's constexprs, by the names that `pointer.jit.matmul_kernel` describes."""

    BLOCK_SIZE_M: int
    BLOCK_SIZE_N: int
    BLOCK_SIZE_K: int
    A_TRANSPOSED: bool
    B_TRANSPOSED: bool
    C_TRANSPOSED: bool
    A_VECTOR: int
    B_VECTOR: int
    C_VECTOR: int
    EVEN_K: bool
    WIDE: bool
    SCALING: str
    ACTIVATION: str
    PRECISION: str
    MAX_IMPRECISE: int
    BIAS_ALONG_M: bool = False
    PDL: bool = False
    TRIGGER: int = 0
    PREFETCH: int = 0
    TOGETHER: int = 1
    WIDENED_FIRST: bool = True
    SUM_PARTS: int = 1


@triton.constexpr_function
def fixed(*constants):  # noqa: ANN002, ANN201
    """Gather constants into one `Fixed`."""
    return Fixed(*constants)


@triton.jit
def sum_steps(  # noqa: ANN201, PLR0917
    tiles, steps_apart, offsets, inside, steps, whole, SUM_DTYPE: tl.constexpr, FIXED: tl.constexpr
):
    """Sum the products of some steps along K; return the sums and the pointers of the next step.

    tiles: pointers to the first of A and B of the first step.
    steps_apart: elements from a step to the next.
    offsets: of a tile's elements.
    inside: which rows and columns exist, the elements along K, and K.
    steps: the first, and one past the last.
    whole: the same of all that the program sums.
    """
    a_tile, b_tile = tiles
    a_step, b_step = steps_apart
    a_offsets, b_offsets = offsets
    in_m, in_n, offs_k, K = inside
    first, beyond = steps
    PRECISION: tl.constexpr = FIXED.PRECISION  # Triton 3.6 does not pass on plain strings
    BLOCK_SIZE_M: tl.constexpr = FIXED.BLOCK_SIZE_M
    BLOCK_SIZE_N: tl.constexpr = FIXED.BLOCK_SIZE_N
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=SUM_DTYPE)
    for step in range(first, beyond):
        blocks.release_midway(step - whole[0], whole[1] - whole[0], FIXED.PDL, FIXED.TRIGGER)
        if FIXED.EVEN_K:
            a = tl.load(a_tile + a_offsets, mask=in_m[:, None], other=0.0)
            b = tl.load(b_tile + b_offsets, mask=in_n[None, :], other=0.0)
        else:
            in_k = offs_k < K - step * FIXED.BLOCK_SIZE_K
            a = tl.load(a_tile + a_offsets, mask=in_m[:, None] & in_k[None, :], other=0.0)
            b = tl.load(b_tile + b_offsets, mask=in_k[:, None] & in_n[None, :], other=0.0)
        sums = tl.dot(
            a, b, sums, input_precision=PRECISION, max_num_imprecise_acc=FIXED.MAX_IMPRECISE, out_dtype=SUM_DTYPE
        )
        a_tile += a_step
        b_tile += b_step
    return sums, (a_tile, b_tile)


@triton.jit
def multiply(pointers, vectors, place, extents, strides, split, FIXED: tl.constexpr):  # noqa: ANN201, PLR0915, PLR0917
    """Write the tile at `place` of C[M, N] = epilogue(A[M, K] @ B[K, N]), summed in float32 (int32 for int8).

    Other arguments are described at `pointer.jit.matmul_kernel`.

    pointers: to A, B and C.
    vectors: pointers to the bias and to the scales of A and of B, or None.
    place: row and column of the tile.
    extents: M and N, at least 1, and K, which may be 0.
    strides: row stride and column stride of A, then of B and of C.
    split: pointers to partial sums and counters, or None; with them, the tile's number is the program's on grid axis 0.
    FIXED: a `Fixed`, whose WIDENED_FIRST says whether the tile's first row and column are computed in 64 bits.
    """
    a_ptr, b_ptr, c_ptr = pointers
    pid_m, pid_n = place
    M, N, K = extents
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn = strides
    partials_ptr, counters_ptr = split
    BLOCK_SIZE_M: tl.constexpr = FIXED.BLOCK_SIZE_M
    BLOCK_SIZE_N: tl.constexpr = FIXED.BLOCK_SIZE_N
    BLOCK_SIZE_K: tl.constexpr = FIXED.BLOCK_SIZE_K
    SCALING: tl.constexpr = FIXED.SCALING
    ACTIVATION: tl.constexpr = FIXED.ACTIVATION
    M, K, stride_am, stride_ak = blocks.multiples_known(M, K, stride_am, stride_ak, FIXED.A_VECTOR, FIXED.A_TRANSPOSED)
    K, N, stride_bk, stride_bn = blocks.multiples_known(K, N, stride_bk, stride_bn, FIXED.B_VECTOR, FIXED.B_TRANSPOSED)
    M, N, stride_cm, stride_cn = blocks.multiples_known(M, N, stride_cm, stride_cn, FIXED.C_VECTOR, FIXED.C_TRANSPOSED)

    # A tile's base address is a 64-bit scalar, and offsets within the tile are 32-bit unless WIDE. Rows are compared
    # with the remaining rows of M, so that no index overflows. Unlike in the tutorial, indices are not taken modulo M
    # or N, which would prevent vector loads along a contiguous dimension.
    rows_left = M - pid_m * BLOCK_SIZE_M
    columns_left = N - pid_n * BLOCK_SIZE_N
    offs_m = tl.arange(0, BLOCK_SIZE_M)
    offs_n = tl.arange(0, BLOCK_SIZE_N)
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    in_m = offs_m < rows_left
    in_n = offs_n < columns_left
    if FIXED.WIDE:
        offs_m = offs_m.to(tl.int64)
        offs_n = offs_n.to(tl.int64)
        offs_k = offs_k.to(tl.int64)
    # Both branches compute the same numbers by different instructions; a kernel keeps those it was measured with.
    if FIXED.WIDENED_FIRST:
        start_m = tl.cast(pid_m, tl.int64) * BLOCK_SIZE_M
        start_n = tl.cast(pid_n, tl.int64) * BLOCK_SIZE_N
    else:
        start_m = (pid_m * BLOCK_SIZE_M).to(tl.int64)
        start_n = (pid_n * BLOCK_SIZE_N).to(tl.int64)
    a_tile = a_ptr + start_m * stride_am
    b_tile = b_ptr + start_n * stride_bn
    a_offsets = offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_offsets = offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    a_step = tl.cast(stride_ak, tl.int64) * BLOCK_SIZE_K
    b_step = tl.cast(stride_bk, tl.int64) * BLOCK_SIZE_K
    first, beyond = blocks.steps_of(K, BLOCK_SIZE_K, partials_ptr)
    if partials_ptr is not None:
        a_tile += first * a_step
        b_tile += first * b_step

    if FIXED.PREFETCH > 0:
        share = min(K - first * BLOCK_SIZE_K, (beyond - first) * BLOCK_SIZE_K)
        if FIXED.BIAS_ALONG_M:
            blocks.prefetch_rows(a_tile, stride_am, rows_left, share, BLOCK_SIZE_M, FIXED.PREFETCH)
        else:
            blocks.prefetch_rows(b_tile, stride_bn, columns_left, share, BLOCK_SIZE_N, FIXED.PREFETCH)
    blocks.await_predecessor(FIXED.PDL, FIXED.TRIGGER)
    sum_dtype: tl.constexpr = tl.int32 if a_ptr.dtype.element_ty == tl.int8 else tl.float32
    tiles, steps_apart, offsets = (a_tile, b_tile), (a_step, b_step), (a_offsets, b_offsets)
    inside, whole = (in_m, in_n, offs_k, K), (first, beyond)
    each = (beyond - first) // FIXED.SUM_PARTS if FIXED.SUM_PARTS > 1 else beyond - first
    sums, tiles = sum_steps(tiles, steps_apart, offsets, inside, (first, first + each), whole, sum_dtype, FIXED)
    if FIXED.SUM_PARTS > 1:
        for part in range(1, FIXED.SUM_PARTS):
            start = first + part * each
            more, tiles = sum_steps(tiles, steps_apart, offsets, inside, (start, start + each), whole, sum_dtype, FIXED)
            sums += more

    blocks.release_last(FIXED.PDL, FIXED.TRIGGER)
    mine = True
    if partials_ptr is not None:
        mine = blocks.publish(sums, partials_ptr, counters_ptr, tl.program_id(0))
    if mine:
        if partials_ptr is not None:
            sums = blocks.collect(sums, partials_ptr, tl.program_id(0), FIXED.TOGETHER)
        out_dtype: tl.constexpr = c_ptr.dtype.element_ty
        start, left = (start_m, start_n), (rows_left, columns_left)
        values = finish(sums, vectors, start, left, FIXED.BIAS_ALONG_M, SCALING, ACTIVATION, out_dtype)
        c_tile = c_ptr + start_m * stride_cm + start_n * stride_cn
        tl.store(
            c_tile + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn,
            values,
            mask=in_m[:, None] & in_n[None, :],
        )
