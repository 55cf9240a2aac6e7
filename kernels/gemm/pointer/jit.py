"""A GEMM that loads through pointers; each program computes one output tile, or one split of a tile's sum along K.

The tile order follows Triton's tutorial 03. The kernels `pointer`, `split_k` and `swap_ab` launch it.
"""

from __future__ import annotations

import triton.language as tl

from tuner.kernels.base.blocks import any_size, count_blocks, grouped
from tuner.kernels.gemm.pointer.tile import fixed, multiply


@any_size
def matmul_kernel(  # noqa: ANN201, PLR0917
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
    TRIGGER: tl.constexpr,
    PREFETCH: tl.constexpr,
    TOGETHER: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
    SUM_PARTS: tl.constexpr,
):
    """Compute C[M, N] = epilogue(A[M, K] @ B[K, N]), summed in float32 (int32 for int8), see `epilogue.finish`.

    Args:
        M, N, K: sizes, at least 1.
        partials_ptr, counters_ptr: None, or memory with which every tile's sum is split over grid axis 1: partial sums
            (float32 or int32, tiles * splits * BLOCK_SIZE_M * BLOCK_SIZE_N) and int32 zeros, one for each tile.
        GROUP_SIZE_M: rows of tiles in a group, at least 1.
        A_VECTOR, B_VECTOR, C_VECTOR: elements that divide a matrix's leading stride and contiguous extent.
        A_TRANSPOSED, B_TRANSPOSED, C_TRANSPOSED: whether columns are contiguous instead of rows.
        EVEN_K: whether BLOCK_SIZE_K divides K.
        WIDE: whether offsets within a tile may exceed 2^31.
        MAX_IMPRECISE: see docs/numerics.md.
        TRIGGER: see `blocks.release_midway`.
        PREFETCH: bytes of the program's share of B (of A with BIAS_ALONG_M, whose operands are exchanged) to prefetch
            into the L2.
        SUM_PARTS: parts of a sum, of one number of steps each, that a program adds in order; 1 with partial sums.
    """
    tile = tl.program_id(0)
    pid_m, pid_n = grouped(tile, count_blocks(M, BLOCK_SIZE_M), count_blocks(N, BLOCK_SIZE_N), GROUP_SIZE_M)
    FIXED: tl.constexpr = fixed(
        *(BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, A_TRANSPOSED, B_TRANSPOSED, C_TRANSPOSED, A_VECTOR, B_VECTOR),
        *(C_VECTOR, EVEN_K, WIDE, SCALING, ACTIVATION, PRECISION, MAX_IMPRECISE, BIAS_ALONG_M, PDL, TRIGGER, PREFETCH),
        *(TOGETHER, False, SUM_PARTS),
    )
    multiply(
        *((a_ptr, b_ptr, c_ptr), (bias_ptr, a_scale_ptr, b_scale_ptr), (pid_m, pid_n), (M, N, K)),
        *((stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn), (partials_ptr, counters_ptr), FIXED),
    )
