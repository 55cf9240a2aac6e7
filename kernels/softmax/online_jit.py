"""Softmax of rows in blocks, with a running maximum (kernel `softmax_online`); `softmax_split` shares its loops."""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import any_size, await_predecessor, count_blocks
from tuner.kernels.softmax.whole_jit import divisible, inside, offsets_of


@triton.jit
def finite(highest):  # noqa: ANN201  jit bodies take no such annotation
    """The number to subtract: the maximum, or 0 if it is -inf, because -inf - (-inf) would be NaN."""
    return tl.where(highest == float("-inf"), 0.0, highest)


@triton.jit
def sum_powers(  # noqa: ANN201, PLR0917
    source,
    left,
    span,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    EVEN_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Each row's maximum over a span of its blocks, and its sum of exp(x - maximum), float32 [BLOCK_SIZE_M].

    source: pointers to the first block's elements, and the elements from block to block.
    left: rows from the tile's first one on, and N.
    span: the first block, and one past the last.

    Each lane keeps its own sum, which is scaled down when the running maximum grows (Milakov and Gimelshein, Online
    normalizer calculation for softmax, arXiv 1805.02867). The sums are added up at the end.
    """
    x_tile, x_step = source
    rows_left, N = left
    rows = tl.arange(0, BLOCK_SIZE_M)
    columns = tl.arange(0, BLOCK_SIZE_N)
    highest = tl.full((BLOCK_SIZE_M,), float("-inf"), tl.float32)
    sums = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for block in tl.range(span[0], span[1], num_stages=STAGES):
        mask = inside(rows, columns, rows_left, N - block * BLOCK_SIZE_N, EVEN_N)
        x = tl.load(x_tile + tl.cast(block, tl.int64) * x_step, mask=mask, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, axis=1))
        shift = finite(higher)
        sums = sums * tl.exp(highest - shift)[:, None] + tl.exp(x - shift[:, None])
        highest = higher
    return highest, tl.sum(sums, axis=1)


@triton.jit
def write_blocks(  # noqa: ANN201, PLR0917
    source,
    target,
    left,
    span,
    highest,
    total,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    EVEN_N: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Read the same blocks again, and write exp(x - highest) / total."""
    x_tile, x_step = source
    out_tile, out_step = target
    rows_left, N = left
    rows = tl.arange(0, BLOCK_SIZE_M)
    columns = tl.arange(0, BLOCK_SIZE_N)
    shift = finite(highest)[:, None]
    share = (1.0 / total)[:, None]
    for block in tl.range(span[0], span[1], num_stages=STAGES):
        mask = inside(rows, columns, rows_left, N - block * BLOCK_SIZE_N, EVEN_N)
        x = tl.load(x_tile + tl.cast(block, tl.int64) * x_step, mask=mask, other=0.0).to(tl.float32)
        values = tl.exp(x - shift) * share
        to = out_tile + tl.cast(block, tl.int64) * out_step
        tl.store(to, values.to(out_tile.dtype.element_ty), mask=mask)


@any_size
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
    """Compute rows in blocks of BLOCK_SIZE_N columns, which are read twice: for maximum and sum, then for the result.

    The arguments are those of `whole_kernel`; STAGES is the pipeline depth of both loops.
    """
    M, N, stride_xm, stride_xn, stride_om = divisible(
        (M, N), (stride_xm, stride_xn, stride_om), X_TRANSPOSED, X_VECTOR, OUT_VECTOR
    )
    rows = tl.arange(0, BLOCK_SIZE_M)
    columns = tl.arange(0, BLOCK_SIZE_N)
    start = tl.cast(tl.program_id(0), tl.int64) * BLOCK_SIZE_M
    x_tile = x_ptr + start * stride_xm + offsets_of(rows, columns, stride_xm, stride_xn, WIDE)
    out_tile = out_ptr + start * stride_om + offsets_of(rows, columns, stride_om, stride_on, WIDE)
    x_step = tl.cast(stride_xn, tl.int64) * BLOCK_SIZE_N
    out_step = tl.cast(stride_on, tl.int64) * BLOCK_SIZE_N
    blocks = count_blocks(N, BLOCK_SIZE_N)
    await_predecessor(PDL)
    source, target, left = (x_tile, x_step), (out_tile, out_step), (M - start, N)
    highest, total = sum_powers(source, left, (0, blocks), BLOCK_SIZE_M, BLOCK_SIZE_N, EVEN_N, STAGES)
    write_blocks(source, target, left, (0, blocks), highest, total, BLOCK_SIZE_M, BLOCK_SIZE_N, EVEN_N, STAGES)
