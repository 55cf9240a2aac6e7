"""Kernels in which each program computes one tile of one product, loaded through pointers or 3-D descriptors.

Programs of one product are neighbours, so they share its operands in the L2. The arguments are described at
`pointer.jit.matmul_kernel`; a batch adds a batch stride in elements for each tensor, 0 if all products share it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import any_size, await_predecessor, count_blocks, grouped, known_multiple, moved_within
from tuner.kernels.base.epilogue import finish
from tuner.kernels.gemm.pointer.tile import fixed, multiply
from tuner.kernels.gemm.tma.tile import sum_products


@triton.jit
def place(M, N, GROUP_SIZE_M, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr):  # noqa: ANN201  jit body
    """The product that this program works on, and the row and column of its tile."""
    tiles_m = count_blocks(M, BLOCK_SIZE_M)
    tiles_n = count_blocks(N, BLOCK_SIZE_N)
    index = tl.program_id(0) // (tiles_m * tiles_n)
    pid_m, pid_n = grouped(tl.program_id(0) % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_SIZE_M)
    return index, pid_m, pid_n


@any_size
def pointer_kernel(  # noqa: ANN201, PLR0917
    a_ptr,
    b_ptr,
    c_ptr,
    bias_ptr,
    M,
    N,
    K,
    stride_ab,
    stride_am,
    stride_ak,
    stride_bb,
    stride_bk,
    stride_bn,
    stride_cb,
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
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute C[i] = epilogue(A[i] @ B[i]); A_VECTOR, B_VECTOR and C_VECTOR divide the batch strides too."""
    await_predecessor(PDL)
    index, pid_m, pid_n = place(M, N, GROUP_SIZE_M, BLOCK_SIZE_M, BLOCK_SIZE_N)
    index = index.to(tl.int64)
    FIXED: tl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, A_TRANSPOSED, B_TRANSPOSED, C_TRANSPOSED, A_VECTOR, B_VECTOR),
        *(C_VECTOR, EVEN_K, WIDE, "none", ACTIVATION, PRECISION, MAX_IMPRECISE),
    )
    pointers = (
        a_ptr + index * known_multiple(stride_ab, A_VECTOR),
        b_ptr + index * known_multiple(stride_bb, B_VECTOR),
        c_ptr + index * known_multiple(stride_cb, C_VECTOR),
    )
    strides = (stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn)
    multiply(pointers, (bias_ptr, None, None), (pid_m, pid_n), (M, N, K), strides, (None, None), FIXED)


@any_size
def tma_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    c_desc,
    bias_ptr,
    M,
    N,
    K,
    A_BATCHED,
    B_BATCHED,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute C[i] = epilogue(A[i] @ B[i]) from descriptors [batch, rows, columns].

    A_BATCHED, B_BATCHED: 0 if all products share one matrix, else 1.
    """
    await_predecessor(PDL)
    index, pid_m, pid_n = place(M, N, GROUP_SIZE_M, BLOCK_SIZE_M, BLOCK_SIZE_N)
    start_m = moved_within(pid_m * BLOCK_SIZE_M, M, BLOCK_SIZE_M)
    start_n = moved_within(pid_n * BLOCK_SIZE_N, N, BLOCK_SIZE_N)
    sums = sum_products(
        *(a_desc, b_desc, start_m, start_n, 0, count_blocks(K, BLOCK_SIZE_K), BLOCK_SIZE_M, BLOCK_SIZE_N),
        *(BLOCK_SIZE_K, A_TRANSPOSED, B_TRANSPOSED, PRECISION, MAX_IMPRECISE),
        *(index * A_BATCHED, index * B_BATCHED),
    )
    start, left = (start_m, start_n), (M - start_m, N - start_n)
    values = finish(sums, (bias_ptr, None, None), start, left, False, "none", ACTIVATION, c_desc.dtype)
    c_desc.store([index, start_m, start_n], values.reshape(1, BLOCK_SIZE_M, BLOCK_SIZE_N))
