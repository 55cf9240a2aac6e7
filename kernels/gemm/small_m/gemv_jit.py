"""Multiplies few rows of A by B without matrix instructions, whose 16 rows would be mostly padding (kernel `gemv`)."""

from __future__ import annotations

import triton.language as tl

from tuner.kernels.base import blocks
from tuner.kernels.base.epilogue import finish


@blocks.any_size
def gemv_kernel(  # noqa: ANN201, PLR0915, PLR0917
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
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    A_VECTOR: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    B_VECTOR: tl.constexpr,
    FOLD: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
    TRIGGER: tl.constexpr,
    PREFETCH: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Compute all rows of C, BLOCK_SIZE_N columns per program; with partial sums, grid axis 1 splits the sum along K.

    BLOCK_SIZE_M is a power of two that is at least M. Every thread keeps its own sums, which are added up at the end.
    FOLD: number of neighbouring products of a row in a thread that are added into one register. The other arguments
    are described at `pointer.jit.matmul_kernel`.
    """
    tile = tl.program_id(0)
    M, K, stride_am, stride_ak = blocks.multiples_known(M, K, stride_am, stride_ak, A_VECTOR, False)
    K, N, stride_bk, stride_bn = blocks.multiples_known(K, N, stride_bk, stride_bn, B_VECTOR, B_TRANSPOSED)
    offs_m = tl.arange(0, BLOCK_SIZE_M)
    offs_n = tl.arange(0, BLOCK_SIZE_N)
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    columns_left = N - tile * BLOCK_SIZE_N
    in_m = offs_m < M
    in_n = offs_n < columns_left
    if WIDE:
        offs_m = offs_m.to(tl.int64)
        offs_n = offs_n.to(tl.int64)
        offs_k = offs_k.to(tl.int64)
    start_n = tl.cast(tile, tl.int64) * BLOCK_SIZE_N
    a_step = tl.cast(stride_ak, tl.int64) * BLOCK_SIZE_K
    b_step = tl.cast(stride_bk, tl.int64) * BLOCK_SIZE_K
    first, beyond = blocks.steps_of(K, BLOCK_SIZE_K, partials_ptr)
    a_tile = a_ptr + first * a_step
    b_tile = b_ptr + start_n * stride_bn + first * b_step
    a_offsets = offs_m[:, None, None] * stride_am + offs_k[None, None, :] * stride_ak
    b_offsets = offs_n[None, :, None] * stride_bn + offs_k[None, None, :] * stride_bk

    if PREFETCH > 0:
        share = min(K - first * BLOCK_SIZE_K, (beyond - first) * BLOCK_SIZE_K)
        blocks.prefetch_rows(b_tile, stride_bn, columns_left, share, BLOCK_SIZE_N, PREFETCH)
    blocks.await_predecessor(PDL, TRIGGER)
    sum_dtype: tl.constexpr = tl.int32 if a_ptr.dtype.element_ty == tl.int8 else tl.float32
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K // FOLD), dtype=sum_dtype)
    for step in range(first, beyond):
        blocks.release_midway(step - first, beyond - first, PDL, TRIGGER)
        a_mask = in_m[:, None, None]
        b_mask = in_n[None, :, None]
        if not EVEN_K:
            in_k = (offs_k < K - step * BLOCK_SIZE_K)[None, None, :]
            a_mask = a_mask & in_k
            b_mask = b_mask & in_k
        b = tl.load(b_tile + b_offsets, mask=b_mask, other=0.0, eviction_policy="evict_first")
        a = tl.load(a_tile + a_offsets, mask=a_mask, other=0.0, eviction_policy="evict_last")
        products = a.to(sum_dtype) * b.to(sum_dtype)
        if FOLD > 1:
            shape: tl.constexpr = (BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K // FOLD, FOLD)
            products = tl.sum(tl.reshape(products, shape), axis=3)
        sums += products
        a_tile += a_step
        b_tile += b_step
    blocks.release_last(PDL, TRIGGER)
    rows = tl.sum(sums, axis=2)

    mine = True
    if partials_ptr is not None:
        mine = blocks.publish(rows, partials_ptr, counters_ptr, tile)
    if mine:
        if partials_ptr is not None:
            rows = blocks.collect(rows, partials_ptr, tile, TOGETHER)
        vectors = (bias_ptr, a_scale_ptr, b_scale_ptr)
        out_dtype: tl.constexpr = c_ptr.dtype.element_ty
        values = finish(rows, vectors, (0, start_n), (M, columns_left), False, SCALING, ACTIVATION, out_dtype)
        c_tile = c_ptr + start_n * stride_cn
        offsets = offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
        tl.store(c_tile + offsets, values, mask=in_m[:, None] & in_n[None, :])
