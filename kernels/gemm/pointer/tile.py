"""One tile of one product, operands loaded through pointers: the loop that all kernels by pointers share.

The software pipeline over K and the masks follow Triton's tutorial 03; the differences are named where they are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import (
    await_predecessor,
    collect,
    count_blocks,
    known_multiple,
    prefetch_rows,
    publish,
    release_last,
    release_midway,
    steps_of_split,
)
from tuner.kernels.base.epilogue import finish


@triton.jit
def multiples_known(  # noqa: ANN201, PLR0917  jit bodies take no such annotation
    rows, columns, stride_rows, stride_columns, VECTOR: tl.constexpr, TRANSPOSED: tl.constexpr
):
    """A matrix's extents and strides; the contiguous extent and the stride of the other one are multiples of VECTOR."""
    if TRANSPOSED:
        rows = known_multiple(rows, VECTOR)
        stride_columns = known_multiple(stride_columns, VECTOR)
    else:
        columns = known_multiple(columns, VECTOR)
        stride_rows = known_multiple(stride_rows, VECTOR)
    return rows, columns, stride_rows, stride_columns


@triton.jit
def multiply(  # noqa: ANN201, PLR0912, PLR0915, PLR0917
    a_ptr,
    b_ptr,
    c_ptr,
    bias_ptr,
    pid_m,
    pid_n,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    C_TRANSPOSED: tl.constexpr,
    A_VECTOR: tl.constexpr,
    B_VECTOR: tl.constexpr,
    C_VECTOR: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
    a_scale_ptr=None,
    b_scale_ptr=None,
    partials_ptr=None,
    counters_ptr=None,
    BIAS_ALONG_M: tl.constexpr = False,
    PDL: tl.constexpr = False,
    TRIGGER: tl.constexpr = 0,
    PREFETCH: tl.constexpr = 0,
    TOGETHER: tl.constexpr = 1,
    WIDENED_FIRST: tl.constexpr = True,
):
    """Write tile (pid_m, pid_n) of C[M, N] = epilogue(A[M, K] @ B[K, N]), summed in float32 (int32 for int8).

    M and N are at least 1, K may be 0. With partial sums, the tile is this program's number on grid axis 0.
    WIDENED_FIRST: whether the tile's first row and column are found in 64 bits. What the other arguments mean is said
    at `pointer_kernel.matmul_kernel`.
    """
    M, K, stride_am, stride_ak = multiples_known(M, K, stride_am, stride_ak, A_VECTOR, A_TRANSPOSED)
    K, N, stride_bk, stride_bn = multiples_known(K, N, stride_bk, stride_bn, B_VECTOR, B_TRANSPOSED)
    M, N, stride_cm, stride_cn = multiples_known(M, N, stride_cm, stride_cn, C_VECTOR, C_TRANSPOSED)

    # A tile's base moves in 64-bit scalars, offsets within it stay 32-bit unless WIDE. Rows are compared with what is
    # left of M, so that the index itself cannot overflow. No index modulo M or N, as the tutorial has it: that breaks
    # the vectors where this dimension is the contiguous one.
    rows_left = M - pid_m * BLOCK_SIZE_M
    columns_left = N - pid_n * BLOCK_SIZE_N
    offs_m = tl.arange(0, BLOCK_SIZE_M)
    offs_n = tl.arange(0, BLOCK_SIZE_N)
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    in_m = offs_m < rows_left
    in_n = offs_n < columns_left
    if WIDE:
        offs_m = offs_m.to(tl.int64)
        offs_n = offs_n.to(tl.int64)
        offs_k = offs_k.to(tl.int64)
    # The same numbers either way, by different instructions: a kernel keeps those that it was measured with.
    if WIDENED_FIRST:
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
    first = 0
    beyond = count_blocks(K, BLOCK_SIZE_K)
    if partials_ptr is not None:
        first, beyond = steps_of_split(beyond)
        a_tile += first * a_step
        b_tile += first * b_step

    if PREFETCH > 0:
        share = min(K - first * BLOCK_SIZE_K, (beyond - first) * BLOCK_SIZE_K)
        if BIAS_ALONG_M:
            prefetch_rows(a_tile, stride_am, rows_left, share, BLOCK_SIZE_M, PREFETCH)
        else:
            prefetch_rows(b_tile, stride_bn, columns_left, share, BLOCK_SIZE_N, PREFETCH)
    await_predecessor(PDL, TRIGGER)
    sum_dtype: tl.constexpr = tl.int32 if a_ptr.dtype.element_ty == tl.int8 else tl.float32
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=sum_dtype)
    for step in range(first, beyond):
        release_midway(step - first, beyond - first, PDL, TRIGGER)
        if EVEN_K:
            a = tl.load(a_tile + a_offsets, mask=in_m[:, None], other=0.0)
            b = tl.load(b_tile + b_offsets, mask=in_n[None, :], other=0.0)
        else:
            in_k = offs_k < K - step * BLOCK_SIZE_K
            a = tl.load(a_tile + a_offsets, mask=in_m[:, None] & in_k[None, :], other=0.0)
            b = tl.load(b_tile + b_offsets, mask=in_k[:, None] & in_n[None, :], other=0.0)
        sums = tl.dot(a, b, sums, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE, out_dtype=sum_dtype)
        a_tile += a_step
        b_tile += b_step

    release_last(PDL, TRIGGER)
    mine = True
    if partials_ptr is not None:
        mine = publish(sums, partials_ptr, counters_ptr, tl.program_id(0))
    if mine:
        if partials_ptr is not None:
            sums = collect(sums, partials_ptr, tl.program_id(0), TOGETHER)
        values = finish(
            sums,
            bias_ptr,
            a_scale_ptr,
            b_scale_ptr,
            start_m,
            start_n,
            rows_left,
            columns_left,
            BIAS_ALONG_M,
            SCALING,
            ACTIVATION,
            c_ptr.dtype.element_ty,
        )
        c_tile = c_ptr + start_m * stride_cm + start_n * stride_cn
        tl.store(
            c_tile + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn,
            values,
            mask=in_m[:, None] & in_n[None, :],
        )
