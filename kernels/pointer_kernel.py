"""One output tile a program (or one split of a tile's sum along K), operands loaded through pointers.

The tile order, the software pipeline over K and the masks follow Triton's tutorial 03; the differences are named where
they are. Kernels: `pointer`, `split_k`, `swap_ab`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.blocks import (
    await_predecessor,
    collect,
    count_blocks,
    grouped,
    known_multiple,
    publish,
    steps_of_split,
)
from tuner.kernels.epilogue import finish


@triton.jit(
    # One binary for every size: nothing is specialized but what the constexprs below and a stride of 1 say.
    do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"],
    do_not_specialize_on_alignment=["stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn"],
)
def matmul_kernel(  # noqa: ANN201, PLR0912, PLR0915, PLR0917
    a_ptr,
    b_ptr,
    c_ptr,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    partials_ptr,
    counters_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    GROUP_SIZE_M,
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
    BIAS_ALONG_M: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
    TOGETHER: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
):
    """C[M, N] = epilogue(A[M, K] @ B[K, N]), summed in float32 (int32 for int8), see `epilogue.finish`.

    M, N and K are at least 1. With `partials_ptr` (float32 or int32, tiles * splits * BLOCK_SIZE_M * BLOCK_SIZE_N) and
    `counters_ptr` (int32 zeros, one a tile) every tile's sum is split over grid axis 1. GROUP_SIZE_M: 1 or more.
    A_VECTOR, B_VECTOR, C_VECTOR: the operand's leading stride and contiguous extent are multiples of so many elements;
    A_TRANSPOSED, B_TRANSPOSED, C_TRANSPOSED: which extent that is. EVEN_K: BLOCK_SIZE_K divides K. WIDE: offsets within
    a tile may pass 2^31. MAX_IMPRECISE: see docs/numerics.md.
    """
    tile = tl.program_id(0)
    pid_m, pid_n = grouped(tile, count_blocks(M, BLOCK_SIZE_M), count_blocks(N, BLOCK_SIZE_N), GROUP_SIZE_M)
    if A_TRANSPOSED:
        M = known_multiple(M, A_VECTOR)
        stride_ak = known_multiple(stride_ak, A_VECTOR)
    else:
        K = known_multiple(K, A_VECTOR)
        stride_am = known_multiple(stride_am, A_VECTOR)
    if B_TRANSPOSED:
        K = known_multiple(K, B_VECTOR)
        stride_bn = known_multiple(stride_bn, B_VECTOR)
    else:
        N = known_multiple(N, B_VECTOR)
        stride_bk = known_multiple(stride_bk, B_VECTOR)
    if C_TRANSPOSED:
        M = known_multiple(M, C_VECTOR)
        stride_cn = known_multiple(stride_cn, C_VECTOR)
    else:
        N = known_multiple(N, C_VECTOR)
        stride_cm = known_multiple(stride_cm, C_VECTOR)

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

    await_predecessor(PDL)
    sum_dtype: tl.constexpr = tl.int32 if a_ptr.dtype.element_ty == tl.int8 else tl.float32
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=sum_dtype)
    for step in range(first, beyond):
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

    mine = True
    if partials_ptr is not None:
        mine = publish(sums, partials_ptr, counters_ptr, tile)
    if mine:
        if partials_ptr is not None:
            sums = collect(sums, partials_ptr, tile, TOGETHER)
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
