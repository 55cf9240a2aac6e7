"""A GEMM of fp8 operands with block scales: 1x128 in one operand, and 128x128 in the other.

Linear layers of vLLM, SGLang and DeepSeek have such scales for their activations and weights. A step along K is one
block long: the tensor cores sum its products, which are then scaled and added to float32 sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base import blocks
from tuner.kernels.base.epilogue import finish
from tuner.kernels.gemm.tma.tile import load, store


@triton.jit
def scales_along(ptr, start, left, stride, EXTENT: tl.constexpr, GROUP: tl.constexpr):  # noqa: ANN201, PLR0917
    """Load the scales of EXTENT neighbours from `start` on, where GROUP neighbours share one; a number if all do."""
    if GROUP >= EXTENT:
        scales = tl.load(ptr + start // GROUP * stride)
    else:
        offsets = tl.arange(0, EXTENT)
        scales = tl.load(ptr + (start + offsets) // GROUP * stride, mask=offsets < left, other=0.0)
    return scales


@triton.jit
def scaled(products, a_scale, b_scale, A_ONE: tl.constexpr, B_ONE: tl.constexpr):  # noqa: ANN201
    """Multiply a tile's products by the scales of its rows and columns, either of which may be a single number."""
    if A_ONE and B_ONE:
        products *= a_scale * b_scale
    elif A_ONE:
        products *= (a_scale * b_scale)[None, :]
    elif B_ONE:
        products *= (a_scale * b_scale)[:, None]
    else:
        products *= a_scale[:, None] * b_scale[None, :]
    return products


@blocks.any_size
def matmul_kernel(  # noqa: ANN201, PLR0915, PLR0917
    a,
    b,
    c,
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
    stride_asm,
    stride_ask,
    stride_bsk,
    stride_bsn,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    C_TRANSPOSED: tl.constexpr,
    A_VECTOR: tl.constexpr,
    B_VECTOR: tl.constexpr,
    EVEN_K: tl.constexpr,
    BIAS_ALONG_M: tl.constexpr,
    A_GROUP: tl.constexpr,
    B_GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Compute C[M, N] = epilogue(A[M, K] @ B[K, N] with scales), one tile, or one split of a tile's sum, per program.

    `a`, `b` and `c` are descriptors, with strides None, or pointers. A scale is shared by A_GROUP rows of A or by
    B_GROUP columns of B, and by BLOCK_SIZE_K (128) elements along K. The other arguments are described at
    `pointer.jit.matmul_kernel`.
    """
    BY_TMA: tl.constexpr = stride_am is None
    tile = tl.program_id(0)
    pid_m, pid_n = blocks.grouped(
        tile, blocks.count_blocks(M, BLOCK_SIZE_M), blocks.count_blocks(N, BLOCK_SIZE_N), GROUP_SIZE_M
    )
    first_m = pid_m * BLOCK_SIZE_M
    first_n = pid_n * BLOCK_SIZE_N
    if BY_TMA:
        if BIAS_ALONG_M:
            if B_TRANSPOSED:
                first_n = blocks.moved_within(first_n, N, BLOCK_SIZE_N)
        elif not A_TRANSPOSED:
            first_m = blocks.moved_within(first_m, M, BLOCK_SIZE_M)
    start_m = first_m.to(tl.int64)
    start_n = first_n.to(tl.int64)
    rows_left = M - first_m
    columns_left = N - first_n
    if not BY_TMA:
        M, K, stride_am, stride_ak = blocks.multiples_known(M, K, stride_am, stride_ak, A_VECTOR, A_TRANSPOSED)
        K, N, stride_bk, stride_bn = blocks.multiples_known(K, N, stride_bk, stride_bn, B_VECTOR, B_TRANSPOSED)
        offs_m = tl.arange(0, BLOCK_SIZE_M)
        offs_n = tl.arange(0, BLOCK_SIZE_N)
        offs_k = tl.arange(0, BLOCK_SIZE_K)
        in_m = (offs_m < M - first_m)[:, None]
        in_n = (offs_n < N - first_n)[None, :]
        a_offsets = offs_m.to(tl.int64)[:, None] * stride_am + offs_k.to(tl.int64)[None, :] * stride_ak
        b_offsets = offs_k.to(tl.int64)[:, None] * stride_bk + offs_n.to(tl.int64)[None, :] * stride_bn
        a_tile = a + start_m * stride_am + a_offsets
        b_tile = b + start_n * stride_bn + b_offsets

    first, beyond = blocks.steps_of(K, BLOCK_SIZE_K, partials_ptr)

    blocks.await_predecessor(PDL)
    a_scale = scales_along(a_scale_ptr + first * stride_ask, start_m, rows_left, stride_asm, BLOCK_SIZE_M, A_GROUP)
    b_scale = scales_along(b_scale_ptr + first * stride_bsk, start_n, columns_left, stride_bsn, BLOCK_SIZE_N, B_GROUP)
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for step in range(first, beyond):
        start_k = step * BLOCK_SIZE_K
        if BY_TMA:
            a_block = load(a, first_m, start_k, A_TRANSPOSED)
            b_block = load(b, start_k, first_n, B_TRANSPOSED)
        else:
            in_k = offs_k < K - start_k
            a_mask = in_m if EVEN_K else in_m & in_k[None, :]
            b_mask = in_n if EVEN_K else in_n & in_k[:, None]
            a_block = tl.load(a_tile + tl.cast(start_k, tl.int64) * stride_ak, mask=a_mask, other=0.0)
            b_block = tl.load(b_tile + tl.cast(start_k, tl.int64) * stride_bk, mask=b_mask, other=0.0)
        products = tl.dot(a_block, b_block, out_dtype=tl.float32)
        # Triton pipelines only what a dot reads, so load the next step's scales during this step.
        following = min(step + 1, beyond - 1)
        a_next = a_scale_ptr + following * stride_ask
        b_next = b_scale_ptr + following * stride_bsk
        a_next_scale = scales_along(a_next, start_m, rows_left, stride_asm, BLOCK_SIZE_M, A_GROUP)
        b_next_scale = scales_along(b_next, start_n, columns_left, stride_bsn, BLOCK_SIZE_N, B_GROUP)
        sums += scaled(products, a_scale, b_scale, A_GROUP >= BLOCK_SIZE_M, B_GROUP >= BLOCK_SIZE_N)
        a_scale = a_next_scale
        b_scale = b_next_scale

    mine = True
    if partials_ptr is not None:
        mine = blocks.publish(sums, partials_ptr, counters_ptr, tile)
    if mine:
        if partials_ptr is not None:
            sums = blocks.collect(sums, partials_ptr, tile, TOGETHER)
        out_dtype: tl.constexpr = c.dtype if BY_TMA else c.dtype.element_ty
        start, left = (start_m, start_n), (rows_left, columns_left)
        values = finish(sums, (bias_ptr, None, None), start, left, BIAS_ALONG_M, "none", ACTIVATION, out_dtype)
        store(c, (first_m, first_n), values, (M, N), (stride_cm, stride_cn), C_TRANSPOSED)
