"""Softmax of long rows, each shared by several programs: partial sums, then the result (kernel `softmax_split`)."""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import any_size, await_predecessor, count_blocks, known_multiple
from tuner.kernels.softmax.online_jit import finite, sum_powers, write_blocks
from tuner.kernels.softmax.whole_jit import offsets_of


@triton.jit
def part(N, SPLIT_N: tl.constexpr, BLOCK_SIZE_N: tl.constexpr):  # noqa: ANN201
    """This program's row, the number of its part, and the part's first block and one past its last."""
    blocks = count_blocks(N, BLOCK_SIZE_N)
    each = count_blocks(blocks, SPLIT_N)
    split = tl.program_id(0) % SPLIT_N
    first = split * each
    return tl.program_id(0) // SPLIT_N, split, (first, min(first + each, blocks))


@any_size
def split_sums_kernel(  # noqa: ANN201, PLR0917
    x_ptr,
    partials_ptr,
    N,
    stride_xm,
    stride_xn,
    SPLIT_N: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    X_VECTOR: tl.constexpr,
    EVEN_N: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Write the maximum and the sum of a part of a row to partials [M, 2, SPLIT_N], with SPLIT_N programs per row."""
    stride_xm = known_multiple(stride_xm, X_VECTOR)
    N = known_multiple(N, X_VECTOR)
    row, split, span = part(N, SPLIT_N, BLOCK_SIZE_N)
    tile = offsets_of(tl.arange(0, 1), tl.arange(0, BLOCK_SIZE_N), stride_xm, stride_xn, WIDE)
    x_tile = x_ptr + tl.cast(row, tl.int64) * stride_xm + tile
    x_step = tl.cast(stride_xn, tl.int64) * BLOCK_SIZE_N
    await_predecessor(PDL)
    highest, total = sum_powers((x_tile, x_step), (1, N), span, 1, BLOCK_SIZE_N, EVEN_N, STAGES)
    own = partials_ptr + tl.cast(row, tl.int64) * (2 * SPLIT_N) + split + tl.arange(0, 1)
    tl.store(own, highest)
    tl.store(own + SPLIT_N, total)


@any_size
def split_write_kernel(  # noqa: ANN201, PLR0917
    x_ptr,
    out_ptr,
    partials_ptr,
    N,
    stride_xm,
    stride_xn,
    stride_om,
    stride_on,
    SPLIT_N: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    X_VECTOR: tl.constexpr,
    OUT_VECTOR: tl.constexpr,
    EVEN_N: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Read the parts again and write the result; every program adds up its row's partial sums in the same order."""
    stride_xm = known_multiple(stride_xm, X_VECTOR)
    stride_om = known_multiple(stride_om, OUT_VECTOR)
    N = known_multiple(known_multiple(N, X_VECTOR), OUT_VECTOR)
    row, _, span = part(N, SPLIT_N, BLOCK_SIZE_N)
    row = tl.cast(row, tl.int64)
    lane, columns = tl.arange(0, 1), tl.arange(0, BLOCK_SIZE_N)
    x_tile = x_ptr + row * stride_xm + offsets_of(lane, columns, stride_xm, stride_xn, WIDE)
    out_tile = out_ptr + row * stride_om + offsets_of(lane, columns, stride_om, stride_on, WIDE)
    x_step = tl.cast(stride_xn, tl.int64) * BLOCK_SIZE_N
    out_step = tl.cast(stride_on, tl.int64) * BLOCK_SIZE_N
    partials = partials_ptr + row * (2 * SPLIT_N) + tl.arange(0, SPLIT_N)[None, :]
    await_predecessor(PDL)
    peaks = tl.load(partials)
    highest = tl.max(peaks, axis=1)
    total = tl.sum(tl.load(partials + SPLIT_N) * tl.exp(peaks - finite(highest)[:, None]), axis=1)
    source, target = (x_tile, x_step), (out_tile, out_step)
    write_blocks(source, target, (1, N), span, highest, total, 1, BLOCK_SIZE_N, EVEN_N, STAGES)
