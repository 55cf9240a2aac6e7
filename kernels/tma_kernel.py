"""Operands loaded, and the output stored, by the tensor memory accelerator through descriptors made on the host.

`matmul_kernel`: one tile a program, or one split of a tile's sum (kernels `tma`, `split_k`, `swap_ab`).
`persistent_kernel`: programs that stay and take tile after tile, after Triton's tutorial 09 (kernel `persistent_tma`).
`composite_kernel`: a tile of two parts side by side that share their rows of A (kernel `composite_n`).

What lies outside an operand is read as 0 and not stored. No size or stride is compiled in. What the arguments mean is
said at `pointer_kernel.matmul_kernel`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.blocks import collect, count_blocks, grouped, publish, steps_of_split
from tuner.kernels.epilogue import finish


@triton.jit
def load(desc, row, column, TRANSPOSED: tl.constexpr):  # noqa: ANN201  jit bodies take no such annotation
    """A block of a matrix, from a descriptor of it as it is stored, by its own row and column."""
    return desc.load([column, row]).T if TRANSPOSED else desc.load([row, column])


@triton.jit
def store(desc, row, column, values, TRANSPOSED: tl.constexpr):  # noqa: ANN201
    """Write a block of a matrix through a descriptor of it as it is stored."""
    if TRANSPOSED:
        desc.store([column, row], values.T)
    else:
        desc.store([row, column], values)


@triton.jit(do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"])
def matmul_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    c_desc,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    partials_ptr,
    counters_ptr,
    M,
    N,
    K,
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
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
):
    """One tile of C a program; its sum is split over grid axis 1 where there are partial sums."""
    tile = tl.program_id(0)
    pid_m, pid_n = grouped(tile, count_blocks(M, BLOCK_SIZE_M), count_blocks(N, BLOCK_SIZE_N), GROUP_SIZE_M)
    start_m = pid_m * BLOCK_SIZE_M
    start_n = pid_n * BLOCK_SIZE_N
    first = 0
    beyond = count_blocks(K, BLOCK_SIZE_K)
    if partials_ptr is not None:
        first, beyond = steps_of_split(beyond)

    sum_dtype: tl.constexpr = tl.int32 if a_desc.dtype == tl.int8 else tl.float32
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=sum_dtype)
    for step in range(first, beyond):
        a = load(a_desc, start_m, step * BLOCK_SIZE_K, A_TRANSPOSED)
        b = load(b_desc, step * BLOCK_SIZE_K, start_n, B_TRANSPOSED)
        sums = tl.dot(a, b, sums, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE, out_dtype=sum_dtype)

    mine = True
    if partials_ptr is not None:
        mine = publish(sums, partials_ptr, counters_ptr, tile)
    if mine:
        if partials_ptr is not None:
            sums = collect(sums, partials_ptr, tile)
        values = finish(
            sums,
            bias_ptr,
            a_scale_ptr,
            b_scale_ptr,
            start_m,
            start_n,
            M - start_m,
            N - start_n,
            BIAS_ALONG_M,
            SCALING,
            ACTIVATION,
            c_desc.dtype,
        )
        store(c_desc, start_m, start_n, values, C_TRANSPOSED)


@triton.jit(do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"])
def persistent_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    c_desc,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    M,
    N,
    K,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    EPILOGUE_PARTS: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
):
    """Tiles of C, one after the other; EPILOGUE_PARTS: 1 stores a tile whole, 2 half its columns at a time.

    The loops over tiles and over K are flattened into one pipeline: the next tile's loads fly during this one's store.
    """
    tiles_m = count_blocks(M, BLOCK_SIZE_M)
    tiles_n = count_blocks(N, BLOCK_SIZE_N)
    steps = count_blocks(K, BLOCK_SIZE_K)
    sum_dtype: tl.constexpr = tl.int32 if a_desc.dtype == tl.int8 else tl.float32
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        pid_m, pid_n = grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M)
        start_m = pid_m * BLOCK_SIZE_M
        start_n = pid_n * BLOCK_SIZE_N
        sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=sum_dtype)
        for step in range(steps):
            a = load(a_desc, start_m, step * BLOCK_SIZE_K, A_TRANSPOSED)
            b = load(b_desc, step * BLOCK_SIZE_K, start_n, B_TRANSPOSED)
            sums = tl.dot(
                a, b, sums, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE, out_dtype=sum_dtype
            )
        if EPILOGUE_PARTS == 1:
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
                c_desc.dtype,
            )
            c_desc.store([start_m, start_n], values)
        else:
            halves = tl.permute(tl.reshape(sums, (BLOCK_SIZE_M, 2, BLOCK_SIZE_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            values = finish(
                left,
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
                c_desc.dtype,
            )
            c_desc.store([start_m, start_n], values)
            start_right = start_n + BLOCK_SIZE_N // 2
            values = finish(
                right,
                bias_ptr,
                a_scale_ptr,
                b_scale_ptr,
                start_m,
                start_right,
                M - start_m,
                N - start_right,
                False,
                SCALING,
                ACTIVATION,
                c_desc.dtype,
            )
            c_desc.store([start_m, start_right], values)


@triton.jit(do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"])
def composite_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    b_rest_desc,
    c_desc,
    c_rest_desc,
    bias_ptr,
    a_scale_ptr,
    b_scale_ptr,
    M,
    N,
    K,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_N_REST: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    PERSISTENT: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
):
    """Tiles of BLOCK_SIZE_N + BLOCK_SIZE_N_REST columns: widths between the powers of two that `tl.dot` takes."""
    tiles_m = count_blocks(M, BLOCK_SIZE_M)
    tiles_n = count_blocks(N, BLOCK_SIZE_N + BLOCK_SIZE_N_REST)
    steps = count_blocks(K, BLOCK_SIZE_K)
    sum_dtype: tl.constexpr = tl.int32 if a_desc.dtype == tl.int8 else tl.float32
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=PERSISTENT):
        pid_m, pid_n = grouped(tile, tiles_m, tiles_n, GROUP_SIZE_M)
        start_m = pid_m * BLOCK_SIZE_M
        start_n = pid_n * (BLOCK_SIZE_N + BLOCK_SIZE_N_REST)
        start_rest = start_n + BLOCK_SIZE_N
        sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=sum_dtype)
        rest = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N_REST), dtype=sum_dtype)
        for step in range(steps):
            a = load(a_desc, start_m, step * BLOCK_SIZE_K, A_TRANSPOSED)
            b = load(b_desc, step * BLOCK_SIZE_K, start_n, B_TRANSPOSED)
            b_rest = load(b_rest_desc, step * BLOCK_SIZE_K, start_rest, B_TRANSPOSED)
            sums = tl.dot(
                a, b, sums, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE, out_dtype=sum_dtype
            )
            rest = tl.dot(
                a, b_rest, rest, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE, out_dtype=sum_dtype
            )
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
            c_desc.dtype,
        )
        c_desc.store([start_m, start_n], values)
        values = finish(
            rest,
            bias_ptr,
            a_scale_ptr,
            b_scale_ptr,
            start_m,
            start_rest,
            M - start_m,
            N - start_rest,
            False,
            SCALING,
            ACTIVATION,
            c_desc.dtype,
        )
        c_rest_desc.store([start_m, start_rest], values)
