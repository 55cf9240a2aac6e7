"""`grouped.jit.grouped_kernel` with operands loaded by the tensor memory accelerator.

The last tile of a group also reads rows of the next group, whose products are not stored.
"""

from __future__ import annotations

import triton.language as tl

from tuner.kernels.base.blocks import any_size, await_predecessor, count_blocks, known_multiple
from tuner.kernels.base.epilogue import finish
from tuner.kernels.gemm.tma.tile import sum_products
from tuner.kernels.grouped.jit import last_tiles, place


@any_size
def grouped_kernel(  # noqa: ANN201, PLR0917  jit bodies take no such annotation
    a_desc,
    b_desc,
    c_ptr,
    bias_ptr,
    ends_ptr,
    M,
    N,
    K,
    GROUPS,
    B_BATCHED,
    stride_cm,
    stride_cn,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    C_VECTOR: tl.constexpr,
    WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute rows of C = epilogue(rows of A @ B[group]) with contiguous rows; C_VECTOR divides N and C's stride."""
    await_predecessor(PDL)
    tiles_n = count_blocks(N, BLOCK_SIZE_N)
    beyond = last_tiles(ends_ptr, GROUPS, M, tiles_n, BLOCK_SIZE_M, BLOCK_GROUPS)
    for tile in range(tl.program_id(0), tl.max(beyond, axis=0), tl.num_programs(0)):
        group, start, end, pid_m, pid_n = place(tile, beyond, ends_ptr, GROUPS, M, tiles_n, GROUP_SIZE_M, BLOCK_SIZE_M)
        start_m = start + pid_m * BLOCK_SIZE_M
        start_n = pid_n * BLOCK_SIZE_N
        sums = sum_products(
            *(a_desc, b_desc, start_m, start_n, 0, count_blocks(K, BLOCK_SIZE_K), BLOCK_SIZE_M, BLOCK_SIZE_N),
            *(BLOCK_SIZE_K, False, B_TRANSPOSED, PRECISION, MAX_IMPRECISE, None, group * B_BATCHED),
        )
        columns_left = known_multiple(N, C_VECTOR) - start_n
        out_dtype: tl.constexpr = c_ptr.dtype.element_ty
        vectors = (None if bias_ptr is None else bias_ptr + group.to(tl.int64) * N, None, None)
        start, left = (start_m, start_n), (end - start_m, columns_left)
        values = finish(sums, vectors, start, left, False, "none", ACTIVATION, out_dtype)
        offs_m = tl.arange(0, BLOCK_SIZE_M)
        offs_n = tl.arange(0, BLOCK_SIZE_N)
        inside = (offs_m < end - start_m)[:, None] & (offs_n < columns_left)[None, :]
        if WIDE:
            offs_m = offs_m.to(tl.int64)
        row_stride = known_multiple(stride_cm, C_VECTOR)
        c_tile = c_ptr + start_m.to(tl.int64) * row_stride + start_n * stride_cn
        tl.store(c_tile + offs_m[:, None] * row_stride + offs_n[None, :] * stride_cn, values, mask=inside)
