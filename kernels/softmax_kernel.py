"""Softmax of rows: whole rows in registers, or rows in blocks with a running maximum.

All of them subtract the row's maximum, sum in float32 in an order that the config alone decides, and multiply by the
sum's reciprocal. A row of -inf alone, and one with a NaN or +inf, become NaN, as torch has it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.blocks import await_predecessor, count_blocks, known_multiple


@triton.jit
def finite(highest):  # noqa: ANN201  jit bodies take no such annotation
    """What to subtract: the maximum, 0 where all so far is -inf, whose difference from itself would be NaN."""
    return tl.where(highest == float("-inf"), 0.0, highest)


@triton.jit
def offsets_of(rows, columns, stride_m, stride_n, WIDE: tl.constexpr):  # noqa: ANN201
    """Elements from a tile's first to each of its others."""
    if WIDE:
        rows = rows.to(tl.int64)
        columns = columns.to(tl.int64)
    return rows[:, None] * stride_m + columns[None, :] * stride_n


@triton.jit
def inside(rows, columns, rows_left, columns_left, EVEN_N: tl.constexpr):  # noqa: ANN201
    """Which elements of a tile belong to the matrix; columns need no mask where blocks divide a row."""
    mask = (rows < rows_left)[:, None]
    if not EVEN_N:
        mask = mask & (columns < columns_left)[None, :]
    return mask


@triton.jit
def opaque(x):  # noqa: ANN201
    """x of 16 bits, two a register, as a value that the compiler knows nothing of: it cannot keep what it made of x."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)


@triton.jit
def normalize_rows(  # noqa: ANN201, PLR0917
    block,
    x_ptr,
    out_ptr,
    M,
    N,
    stride_xm,
    stride_xn,
    stride_om,
    stride_on,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    EVEN_N: tl.constexpr,
    WIDE: tl.constexpr,
    RECOMPUTED: tl.constexpr,
):
    """The block-th block of whole rows."""
    rows = tl.arange(0, BLOCK_SIZE_M)
    columns = tl.arange(0, BLOCK_SIZE_N)
    start = tl.cast(block, tl.int64) * BLOCK_SIZE_M
    mask = inside(rows, columns, M - start, N, EVEN_N)
    x_tile = x_ptr + start * stride_xm + offsets_of(rows, columns, stride_xm, stride_xn, WIDE)
    x = tl.load(x_tile, mask=mask, other=float("-inf"))
    highest = tl.max(x.to(tl.float32), axis=1)[:, None]
    if RECOMPUTED:
        x = opaque(x)
    powers = tl.exp(x.to(tl.float32) - highest)
    share = (1.0 / tl.sum(powers, axis=1))[:, None]
    if RECOMPUTED:
        powers = tl.exp(opaque(x).to(tl.float32) - highest)
    values = powers * share
    out_tile = out_ptr + start * stride_om + offsets_of(rows, columns, stride_om, stride_on, WIDE)
    tl.store(out_tile, values.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=["M", "N"],
    do_not_specialize_on_alignment=["stride_xm", "stride_xn", "stride_om", "stride_on"],
)
def whole_kernel(  # noqa: ANN201, PLR0917
    x_ptr,
    out_ptr,
    M,
    N,
    stride_xm,
    stride_xn,
    stride_om,
    stride_on,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    X_TRANSPOSED: tl.constexpr,
    X_VECTOR: tl.constexpr,
    OUT_VECTOR: tl.constexpr,
    EVEN_N: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
    RECOMPUTED: tl.constexpr,
):
    """Rows that fit into a program's registers: read once, written once.

    Args:
        x_ptr, out_ptr: matrices of M rows and N columns; out may be x.
        M, N: at least 1.
        stride_xm, stride_xn, stride_om, stride_on: of rows and columns, in elements.
        BLOCK_SIZE_M: rows of a program, a power of two.
        BLOCK_SIZE_N: the power of two that holds N.
        X_TRANSPOSED: whether x's rows are contiguous, not its columns.
        X_VECTOR: a power of two that divides stride_xm and N (transposed: stride_xn and M).
        OUT_VECTOR: the same of stride_om and N.
        EVEN_N: whether BLOCK_SIZE_N divides N.
        WIDE: offsets within a tile may pass 2^31.
        STAGES: 0: a block of rows a program. Else programs take block after block, so many loads in flight.
        PDL: see `await_predecessor`.
        RECOMPUTED: x stays in registers as it was read, 16 bits a value; powers are made anew for the result.
    """
    stride_om = known_multiple(stride_om, OUT_VECTOR)
    N = known_multiple(N, OUT_VECTOR)
    if X_TRANSPOSED:
        stride_xn = known_multiple(stride_xn, X_VECTOR)
        M = known_multiple(M, X_VECTOR)
    else:
        stride_xm = known_multiple(stride_xm, X_VECTOR)
        N = known_multiple(N, X_VECTOR)
    await_predecessor(PDL)
    if STAGES == 0:
        normalize_rows(
            tl.program_id(0),
            x_ptr,
            out_ptr,
            M,
            N,
            stride_xm,
            stride_xn,
            stride_om,
            stride_on,
            BLOCK_SIZE_M,
            BLOCK_SIZE_N,
            EVEN_N,
            WIDE,
            RECOMPUTED,
        )
    else:
        for block in tl.range(tl.program_id(0), count_blocks(M, BLOCK_SIZE_M), tl.num_programs(0), num_stages=STAGES):
            normalize_rows(
                block,
                x_ptr,
                out_ptr,
                M,
                N,
                stride_xm,
                stride_xn,
                stride_om,
                stride_on,
                BLOCK_SIZE_M,
                BLOCK_SIZE_N,
                EVEN_N,
                WIDE,
                RECOMPUTED,
            )


@triton.jit
def sum_powers(  # noqa: ANN201, PLR0917
    x_tile,
    x_step,
    rows_left,
    N,
    first,
    beyond,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    EVEN_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Maximum of each row over its blocks from `first` on, and the sum of exp(x - maximum), float32 [BLOCK_SIZE_M].

    Each lane keeps a sum of its own, scaled down whenever the running maximum grows (Milakov and Gimelshein, Online
    normalizer calculation for softmax, arXiv 1805.02867); they meet once, at the end.
    """
    rows = tl.arange(0, BLOCK_SIZE_M)
    columns = tl.arange(0, BLOCK_SIZE_N)
    highest = tl.full((BLOCK_SIZE_M,), float("-inf"), tl.float32)
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for block in tl.range(first, beyond, num_stages=STAGES):
        mask = inside(rows, columns, rows_left, N - block * BLOCK_SIZE_N, EVEN_N)
        x = tl.load(x_tile + tl.cast(block, tl.int64) * x_step, mask=mask, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, axis=1))
        shift = finite(higher)
        sums = sums * tl.exp(highest - shift)[:, None] + tl.exp(x - shift[:, None])
        highest = higher
    return highest, tl.sum(sums, axis=1)


@triton.jit
def write_blocks(  # noqa: ANN201, PLR0917
    x_tile,
    x_step,
    out_tile,
    out_step,
    rows_left,
    N,
    first,
    beyond,
    highest,
    total,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    EVEN_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """exp(x - highest) / total of the same blocks, which are read again."""
    rows = tl.arange(0, BLOCK_SIZE_M)
    columns = tl.arange(0, BLOCK_SIZE_N)
    shift = finite(highest)[:, None]
    share = (1.0 / total)[:, None]
    for block in tl.range(first, beyond, num_stages=STAGES):
        mask = inside(rows, columns, rows_left, N - block * BLOCK_SIZE_N, EVEN_N)
        x = tl.load(x_tile + tl.cast(block, tl.int64) * x_step, mask=mask, other=0.0).to(tl.float32)
        values = tl.exp(x - shift) * share
        to = out_tile + tl.cast(block, tl.int64) * out_step
        tl.store(to, values.to(out_tile.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=["M", "N"],
    do_not_specialize_on_alignment=["stride_xm", "stride_xn", "stride_om", "stride_on"],
)
def online_kernel(  # noqa: ANN201, PLR0917
    x_ptr,
    out_ptr,
    M,
    N,
    stride_xm,
    stride_xn,
    stride_om,
    stride_on,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    X_TRANSPOSED: tl.constexpr,
    X_VECTOR: tl.constexpr,
    OUT_VECTOR: tl.constexpr,
    EVEN_N: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Rows in blocks of BLOCK_SIZE_N columns, read twice: for maximum and sum, then for the result.

    The arguments are those of `whole_kernel`; STAGES is the pipeline of both loops.
    """
    stride_om = known_multiple(stride_om, OUT_VECTOR)
    N = known_multiple(N, OUT_VECTOR)
    if X_TRANSPOSED:
        stride_xn = known_multiple(stride_xn, X_VECTOR)
        M = known_multiple(M, X_VECTOR)
    else:
        stride_xm = known_multiple(stride_xm, X_VECTOR)
        N = known_multiple(N, X_VECTOR)
    rows = tl.arange(0, BLOCK_SIZE_M)
    columns = tl.arange(0, BLOCK_SIZE_N)
    start = tl.cast(tl.program_id(0), tl.int64) * BLOCK_SIZE_M
    x_tile = x_ptr + start * stride_xm + offsets_of(rows, columns, stride_xm, stride_xn, WIDE)
    out_tile = out_ptr + start * stride_om + offsets_of(rows, columns, stride_om, stride_on, WIDE)
    x_step = tl.cast(stride_xn, tl.int64) * BLOCK_SIZE_N
    out_step = tl.cast(stride_on, tl.int64) * BLOCK_SIZE_N
    blocks = count_blocks(N, BLOCK_SIZE_N)
    await_predecessor(PDL)
    highest, total = sum_powers(x_tile, x_step, M - start, N, 0, blocks, BLOCK_SIZE_M, BLOCK_SIZE_N, EVEN_N, STAGES)
    write_blocks(
        x_tile,
        x_step,
        out_tile,
        out_step,
        M - start,
        N,
        0,
        blocks,
        highest,
        total,
        BLOCK_SIZE_M,
        BLOCK_SIZE_N,
        EVEN_N,
        STAGES,
    )
