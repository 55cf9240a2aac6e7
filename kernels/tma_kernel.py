"""Operands loaded, and the output stored, by the tensor memory accelerator through descriptors made on the host.

`matmul_kernel`: one tile a program, or one split of a tile's sum (kernels `tma`, `split_k`, `swap_ab`).
`persistent_kernel`: programs that stay and take tile after tile, after Triton's tutorial 09 (kernel `persistent_tma`).
`composite_kernel`: a tile of two parts side by side that share their rows of A (kernel `composite_n`).

What lies outside an operand is read as 0 and not stored. No size or stride is compiled in. What the arguments mean is
said at `pointer_kernel.matmul_kernel`. An output that TMA cannot write (kernel `padded`) comes as a pointer with its
strides; with a descriptor these are None.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.blocks import await_predecessor, collect, count_blocks, grouped, publish, steps_of_split
from tuner.kernels.epilogue import finish


@triton.jit
def load(desc, row, column, TRANSPOSED: tl.constexpr):  # noqa: ANN201  jit bodies take no such annotation
    """A block of a matrix, from a descriptor of it as it is stored, by its own row and column."""
    return desc.load([column, row]).T if TRANSPOSED else desc.load([row, column])


@triton.jit
def store(c, row, column, values, M, N, stride_m, stride_n, TRANSPOSED: tl.constexpr):  # noqa: ANN201, PLR0917
    """Write a block of a matrix [M, N] through a descriptor of it as it is stored, or by a pointer and its strides."""
    if stride_m is not None:
        offs_m = tl.arange(0, values.shape[0])
        offs_n = tl.arange(0, values.shape[1])
        inside = (offs_m < M - row)[:, None] & (offs_n < N - column)[None, :]
        rows = (row + offs_m).to(tl.int64) * stride_m
        columns = (column + offs_n).to(tl.int64) * stride_n
        tl.store(c + rows[:, None] + columns[None, :], values, mask=inside)
    elif TRANSPOSED:
        c.store([column, row], values.T)
    else:
        c.store([row, column], values)


@triton.jit(
    do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"],
    do_not_specialize_on_alignment=["stride_cm", "stride_cn"],
)
def matmul_kernel(  # noqa: ANN201, PLR0917
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
    TOGETHER: tl.constexpr,
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

    out_dtype: tl.constexpr = c.dtype if stride_cm is None else c.dtype.element_ty
    await_predecessor(PDL)
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
            sums = collect(sums, partials_ptr, tile, TOGETHER)
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
            out_dtype,
        )
        store(c, start_m, start_n, values, M, N, stride_cm, stride_cn, C_TRANSPOSED)


@triton.jit(
    do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"],
    do_not_specialize_on_alignment=["stride_cm", "stride_cn"],
)
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
    EPILOGUE_PARTS: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    C_TRANSPOSED: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
):
    """Tiles of C, one after the other; EPILOGUE_PARTS: 1 stores a tile whole, 2 half its columns at a time.

    The loops over tiles and over K are flattened into one pipeline: the next tile's loads fly during this one's store.
    """
    tiles_m = count_blocks(M, BLOCK_SIZE_M)
    tiles_n = count_blocks(N, BLOCK_SIZE_N)
    steps = count_blocks(K, BLOCK_SIZE_K)
    out_dtype: tl.constexpr = c.dtype if stride_cm is None else c.dtype.element_ty
    await_predecessor(PDL)
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
                out_dtype,
            )
            store(c, start_m, start_n, values, M, N, stride_cm, stride_cn, C_TRANSPOSED)
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
                out_dtype,
            )
            store(c, start_m, start_n, values, M, N, stride_cm, stride_cn, C_TRANSPOSED)
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
                out_dtype,
            )
            store(c, start_m, start_right, values, M, N, stride_cm, stride_cn, C_TRANSPOSED)


@triton.jit(
    do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"],
    do_not_specialize_on_alignment=["stride_cm", "stride_cn"],
)
def composite_kernel(  # noqa: ANN201, PLR0917
    a_desc,
    b_desc,
    b_rest_desc,
    c,
    c_rest,
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
    BLOCK_SIZE_N_REST: tl.constexpr,
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
    """One tile of BLOCK_SIZE_N + BLOCK_SIZE_N_REST columns: a width between the powers of two that `tl.dot` takes."""
    tiles_n = count_blocks(N, BLOCK_SIZE_N + BLOCK_SIZE_N_REST)
    pid_m, pid_n = grouped(tl.program_id(0), count_blocks(M, BLOCK_SIZE_M), tiles_n, GROUP_SIZE_M)
    start_m = pid_m * BLOCK_SIZE_M
    start_n = pid_n * (BLOCK_SIZE_N + BLOCK_SIZE_N_REST)
    start_rest = start_n + BLOCK_SIZE_N
    out_dtype: tl.constexpr = c.dtype if stride_cm is None else c.dtype.element_ty
    await_predecessor(PDL)
    sum_dtype: tl.constexpr = tl.int32 if a_desc.dtype == tl.int8 else tl.float32
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=sum_dtype)
    rest = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N_REST), dtype=sum_dtype)
    for step in range(count_blocks(K, BLOCK_SIZE_K)):
        a = load(a_desc, start_m, step * BLOCK_SIZE_K, A_TRANSPOSED)
        b = load(b_desc, step * BLOCK_SIZE_K, start_n, B_TRANSPOSED)
        b_rest = load(b_rest_desc, step * BLOCK_SIZE_K, start_rest, B_TRANSPOSED)
        sums = tl.dot(a, b, sums, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE, out_dtype=sum_dtype)
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
        out_dtype,
    )
    store(c, start_m, start_n, values, M, N, stride_cm, stride_cn, C_TRANSPOSED)
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
        out_dtype,
    )
    store(c_rest, start_m, start_rest, values, M, N, stride_cm, stride_cn, C_TRANSPOSED)
