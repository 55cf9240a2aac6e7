"""Multiplies few rows by two or three weights without matrix instructions, whose rows would be mostly padding."""

from __future__ import annotations

import triton.language as tl

from tuner.kernels.base import blocks
from tuner.kernels.space import refinements

AFTER_LAST_STEP = tl.constexpr(refinements.AFTER_LAST_STEP)


@blocks.any_size
def merged_gemv_kernel(  # noqa: ANN201, PLR0915, PLR0917  jit bodies take no such annotation
    x_ptr,
    first_ptr,
    second_ptr,
    third_ptr,
    first_bias_ptr,
    second_bias_ptr,
    third_bias_ptr,
    out_ptr,
    M,
    K,
    N_FIRST,
    N_SECOND,
    N_THIRD,
    stride_am,
    stride_bn,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    VECTOR_K: tl.constexpr,
    FOLD: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute all rows of x @ weight.T + bias for BLOCK_SIZE_N rows of one of the weights per program.

    The products lie one after another at `out_ptr`. BLOCK_SIZE_M is a power of two that is at least M. Every thread
    keeps its own sums, which are added up at the end.

    x_ptr: [M, K], rows of contiguous elements.
    first_ptr, second_ptr, third_ptr: the weights [N_FIRST, K], [N_SECOND, K] and [N_THIRD, K], all with the same
        distance of rows; `third_ptr` may be None.
    first_bias_ptr, second_bias_ptr, third_bias_ptr: their biases, contiguous; None where they have none.
    VECTOR_K: divides K and both strides.
    FOLD: number of neighbouring products of a row in a thread that are added into one register.
    EVEN_K: whether BLOCK_SIZE_K divides K.
    WIDE: whether offsets within a tile need 64 bits.
    PDL: whether it starts while its predecessor still runs; it lets the next one start after its last loads.
    """
    K = blocks.known_multiple(K, VECTOR_K)
    stride_am = blocks.known_multiple(stride_am, VECTOR_K)
    stride_bn = blocks.known_multiple(stride_bn, VECTOR_K)
    tile = tl.program_id(0)
    weight_ptr = first_ptr
    bias_ptr = first_bias_ptr
    columns = N_FIRST
    before = tl.cast(0, tl.int64)
    tiles = blocks.count_blocks(N_FIRST, BLOCK_SIZE_N)
    if tile >= tiles:
        tile -= tiles
        weight_ptr = second_ptr
        bias_ptr = second_bias_ptr
        columns = N_SECOND
        before += N_FIRST
        if third_ptr is not None:
            tiles = blocks.count_blocks(N_SECOND, BLOCK_SIZE_N)
            if tile >= tiles:
                tile -= tiles
                weight_ptr = third_ptr
                bias_ptr = third_bias_ptr
                columns = N_THIRD
                before += N_SECOND
    start_n = tl.cast(tile, tl.int64) * BLOCK_SIZE_N
    offs_m = tl.arange(0, BLOCK_SIZE_M)
    offs_n = tl.arange(0, BLOCK_SIZE_N)
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    in_m = offs_m < M
    in_n = offs_n < (columns - start_n).to(tl.int32)
    if WIDE:
        offs_m = offs_m.to(tl.int64)
        offs_n = offs_n.to(tl.int64)
    weight_first = weight_ptr + start_n * stride_bn
    x_offsets = offs_m[:, None, None] * stride_am + offs_k[None, None, :]
    offsets = offs_n[None, :, None] * stride_bn + offs_k[None, None, :]
    blocks.await_predecessor(PDL, AFTER_LAST_STEP)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + start_n + offs_n, mask=in_n, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K // FOLD), dtype=tl.float32)
    shape: tl.constexpr = (BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K // FOLD, FOLD)
    for step in range(blocks.count_blocks(K, BLOCK_SIZE_K)):
        x_mask = in_m[:, None, None]
        mask = in_n[None, :, None]
        if not EVEN_K:
            in_k = (offs_k < K - step * BLOCK_SIZE_K)[None, None, :]
            x_mask = x_mask & in_k
            mask = mask & in_k
        at = step * BLOCK_SIZE_K
        weight = tl.load(weight_first + at + offsets, mask=mask, other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + at + x_offsets, mask=x_mask, other=0.0, eviction_policy="evict_last")
        products = x.to(tl.float32) * weight.to(tl.float32)
        if FOLD > 1:
            sums += tl.sum(tl.reshape(products, shape), axis=3)
        else:
            sums += products
    blocks.release_last(PDL, AFTER_LAST_STEP)
    values = tl.sum(sums, axis=2)
    if bias_ptr is not None:
        values += bias[None, :]
    out_first = out_ptr + M * before + start_n
    tl.store(
        out_first + offs_m[:, None].to(tl.int64) * columns + offs_n[None, :],
        values.to(out_ptr.dtype.element_ty),
        mask=in_m[:, None] & in_n[None, :],
    )
