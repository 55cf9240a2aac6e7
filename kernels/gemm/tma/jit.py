"""GEMMs that load and store through descriptors of the tensor memory accelerator, which the host makes.

In `matmul_kernel`, each program computes one tile, or one split of a tile's sum (kernels `tma`, `split_k`, `swap_ab`).
In `persistent_kernel`, programs take tile after tile, as in Triton's tutorial 09 (kernel `persistent_tma`).

The arguments are described at `tma.tile` and `pointer.jit.matmul_kernel`.
"""

from __future__ import annotations

import triton.language as tl

from tuner.kernels.base import blocks
from tuner.kernels.gemm.tma.tile import sum_products, write


@blocks.any_size
def matmul_kernel(  # noqa: ANN201, PLR0917  jit bodies take no such annotation
    a_desc,
    b_desc,
    c,
    prefetched_ptr,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    partials_ptr,
    counters_ptr,
    M,
    N,
    K,
    stride_prefetched,
    stride_cm,
    stride_cn,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    C_TRANSPOSED: tl.constexpr,
    BIAS_ALONG_M: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
    TRIGGER: tl.constexpr,
    PREFETCH: tl.constexpr,
    TOGETHER: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
):
    """Compute one tile of C per program; with partial sums, the tile's sum is split over grid axis 1.

    prefetched_ptr: the operand whose rows along K are prefetched into the L2; None if PREFETCH is 0.
    """
    tile = tl.program_id(0)
    pid_m, pid_n = blocks.grouped(
        tile, blocks.count_blocks(M, BLOCK_SIZE_M), blocks.count_blocks(N, BLOCK_SIZE_N), GROUP_SIZE_M
    )
    start_m = pid_m * BLOCK_SIZE_M
    start_n = pid_n * BLOCK_SIZE_N
    A_UNIT: tl.constexpr = 128 // a_desc.dtype.primitive_bitwidth if A_TRANSPOSED else 1
    B_UNIT: tl.constexpr = 1 if B_TRANSPOSED else 128 // b_desc.dtype.primitive_bitwidth
    # C through a pointer keeps what it has contiguous in place; C's descriptor has extents of whole 16 bytes.
    if BIAS_ALONG_M or stride_cm is None:
        start_n = blocks.moved_within(start_n, N, BLOCK_SIZE_N, B_UNIT)
    if not BIAS_ALONG_M or stride_cm is None:
        start_m = blocks.moved_within(start_m, M, BLOCK_SIZE_M, A_UNIT)
    first, beyond = blocks.steps_of(K, BLOCK_SIZE_K, partials_ptr)

    if PREFETCH > 0:
        share = min(K - first * BLOCK_SIZE_K, (beyond - first) * BLOCK_SIZE_K)
        start = start_m if BIAS_ALONG_M else start_n
        rows = (M if BIAS_ALONG_M else N) - start
        ROWS: tl.constexpr = BLOCK_SIZE_M if BIAS_ALONG_M else BLOCK_SIZE_N
        corner = prefetched_ptr + tl.cast(start, tl.int64) * stride_prefetched + first * BLOCK_SIZE_K
        blocks.prefetch_rows(corner, stride_prefetched, rows, share, ROWS, PREFETCH)
    blocks.await_predecessor(PDL, TRIGGER)
    sums = sum_products(
        *(a_desc, b_desc, start_m, start_n, first, beyond, BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K),
        *(A_TRANSPOSED, B_TRANSPOSED, PRECISION, MAX_IMPRECISE),
        PDL=PDL,
        TRIGGER=TRIGGER,
    )
    blocks.release_last(PDL, TRIGGER)

    mine = True
    if partials_ptr is not None:
        mine = blocks.publish(sums, partials_ptr, counters_ptr, tile)
    if mine:
        if partials_ptr is not None:
            sums = blocks.collect(sums, partials_ptr, tile, TOGETHER)
        write(
            *(c, sums, (bias_ptr, a_scale_ptr, b_scale_ptr), (start_m, start_n), (M, N), (stride_cm, stride_cn)),
            *(C_TRANSPOSED, SCALING, ACTIVATION, BIAS_ALONG_M),
        )


@blocks.any_size
def persistent_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    c,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    C_TRANSPOSED: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
):
    """Compute tiles of C, one after the other.

    The loops over tiles and over K are flattened into one pipeline, so that the next tile is loaded while this one is
    stored.
    """
    tiles_m = blocks.count_blocks(M, BLOCK_SIZE_M)
    tiles_n = blocks.count_blocks(N, BLOCK_SIZE_N)
    steps = blocks.count_blocks(K, BLOCK_SIZE_K)
    A_UNIT: tl.constexpr = 128 // a_desc.dtype.primitive_bitwidth if A_TRANSPOSED else 1
    B_UNIT: tl.constexpr = 1 if B_TRANSPOSED else 128 // b_desc.dtype.primitive_bitwidth
    blocks.await_predecessor(PDL)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        pid_m, pid_n = blocks.grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M)
        start_m = blocks.moved_within(pid_m * BLOCK_SIZE_M, M, BLOCK_SIZE_M, A_UNIT)
        start_n = pid_n * BLOCK_SIZE_N
        if stride_cm is None:
            start_n = blocks.moved_within(start_n, N, BLOCK_SIZE_N, B_UNIT)
        sums = sum_products(
            *(a_desc, b_desc, start_m, start_n, 0, steps, BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K),
            *(A_TRANSPOSED, B_TRANSPOSED, PRECISION, MAX_IMPRECISE),
        )
        vectors, start = (bias_ptr, a_scale_ptr, b_scale_ptr), (start_m, start_n)
        write(c, sums, vectors, start, (M, N), (stride_cm, stride_cn), C_TRANSPOSED, SCALING, ACTIVATION)
