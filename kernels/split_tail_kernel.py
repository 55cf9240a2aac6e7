"""Whole tiles for as long as they fill the device; the tiles that are left are split along K (kernel `split_tail`)."""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.blocks import await_predecessor, collect, count_blocks, grouped, publish, steps_of_split
from tuner.kernels.epilogue import finish
from tuner.kernels.tma_kernel import load, store


@triton.jit(
    do_not_specialize=["M", "N", "K", "GROUP_SIZE_M", "WHOLE_TILES", "SPLIT_K"],
    do_not_specialize_on_alignment=["stride_cm", "stride_cn"],
)
def split_tail_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    c,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    partials_ptr,
    counters_ptr,
    M,
    N,
    K,
    stride_cm,
    stride_cn,
    GROUP_SIZE_M,
    WHOLE_TILES,
    SPLIT_K,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    C_TRANSPOSED: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
    TOGETHER: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
):
    """A tile of C for each of the first WHOLE_TILES programs, then a split of a tile's sum for each of the rest.

    The partial sums and counters are of the split tiles alone. What the other arguments mean is said at
    `pointer_kernel.matmul_kernel`.
    """
    work = tl.program_id(0)
    tile = work
    split = 0
    splits = 1
    if work >= WHOLE_TILES:
        tile = WHOLE_TILES + (work - WHOLE_TILES) // SPLIT_K
        split = (work - WHOLE_TILES) % SPLIT_K
        splits = SPLIT_K
    pid_m, pid_n = grouped(tile, count_blocks(M, BLOCK_SIZE_M), count_blocks(N, BLOCK_SIZE_N), GROUP_SIZE_M)
    start_m = pid_m * BLOCK_SIZE_M
    start_n = pid_n * BLOCK_SIZE_N
    first, beyond = steps_of_split(count_blocks(K, BLOCK_SIZE_K), split, splits)

    out_dtype: tl.constexpr = c.dtype if stride_cm is None else c.dtype.element_ty
    await_predecessor(PDL)
    sum_dtype: tl.constexpr = tl.int32 if a_desc.dtype == tl.int8 else tl.float32
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=sum_dtype)
    for step in range(first, beyond):
        a = load(a_desc, start_m, step * BLOCK_SIZE_K, A_TRANSPOSED)
        b = load(b_desc, step * BLOCK_SIZE_K, start_n, B_TRANSPOSED)
        sums = tl.dot(a, b, sums, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE, out_dtype=sum_dtype)

    mine = True
    if splits > 1:
        mine = publish(sums, partials_ptr, counters_ptr, tile - WHOLE_TILES, split, splits)
    if mine:
        if splits > 1:
            sums = collect(sums, partials_ptr, tile - WHOLE_TILES, splits, TOGETHER)
        values = finish(
            sums,
            bias_ptr,
            a_scale_ptr,
            b_scale_ptr,
            start_m,
            start_n,
            M - start_m,
            N - start_n,
            False,
            SCALING,
            ACTIVATION,
            out_dtype,
        )
        store(c, start_m, start_n, values, M, N, stride_cm, stride_cn, C_TRANSPOSED)
