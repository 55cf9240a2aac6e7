"""One tile of one product out of many, through pointers: what the kernels of `bmm` and `grouped_mm` do once a tile.

The loop is that of `pointer_kernel.matmul_kernel`, which says what the arguments mean; here they belong to one product,
and the tile is given.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.blocks import count_blocks, known_multiple
from tuner.kernels.epilogue import finish


@triton.jit
def multiply(  # noqa: ANN201, PLR0915, PLR0917  jit bodies take no such annotation
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
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
):
    """Write tile (pid_m, pid_n) of C[M, N] = epilogue(A[M, K] @ B[K, N]); M and N are at least 1, K may be 0."""
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
    start_m = tl.cast(pid_m, tl.int64) * BLOCK_SIZE_M
    start_n = tl.cast(pid_n, tl.int64) * BLOCK_SIZE_N
    a_tile = a_ptr + start_m * stride_am
    b_tile = b_ptr + start_n * stride_bn
    a_offsets = offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_offsets = offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    a_step = tl.cast(stride_ak, tl.int64) * BLOCK_SIZE_K
    b_step = tl.cast(stride_bk, tl.int64) * BLOCK_SIZE_K

    sum_dtype: tl.constexpr = tl.int32 if a_ptr.dtype.element_ty == tl.int8 else tl.float32
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=sum_dtype)
    for step in range(count_blocks(K, BLOCK_SIZE_K)):
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

    values = finish(
        sums,
        bias_ptr,
        None,
        None,
        start_m,
        start_n,
        rows_left,
        columns_left,
        False,
        "none",
        ACTIVATION,
        c_ptr.dtype.element_ty,
    )
    c_tile = c_ptr + start_m * stride_cm + start_n * stride_cn
    tl.store(
        c_tile + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn,
        values,
        mask=in_m[:, None] & in_n[None, :],
    )
