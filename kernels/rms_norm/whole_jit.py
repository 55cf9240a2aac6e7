"""RMSNorm of rows that fit into registers (kernel `rms_norm_whole`)."""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import any_size, await_predecessor
from tuner.kernels.softmax.whole_jit import divisible, inside, offsets_of


@triton.jit
def load_weight(  # noqa: ANN201  jit bodies take no such annotation
    weight_ptr, columns, N, EVEN_N: tl.constexpr, OFFSET: tl.constexpr
):
    """The weight plus OFFSET in float32 [1, BLOCK_SIZE_N]; beyond N it is OFFSET."""
    at = (weight_ptr + columns)[None, :]
    weight = tl.load(at) if EVEN_N else tl.load(at, mask=(columns < N)[None, :], other=0.0)
    weight = weight.to(tl.float32)
    return weight if OFFSET == 0 else weight + OFFSET


@any_size
def norm_kernel(  # noqa: ANN201, PLR0917
    x_ptr,
    weight_ptr,
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
    PDL: tl.constexpr,
    EPS: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """Compute x / sqrt(mean(x²) + EPS) * (OFFSET + weight) of rows that are read once and written once, in float32.

    The weight may be what the kernel before wrote, so it is not read earlier than x.

    Args:
        x_ptr, out_ptr: matrices of M rows and N columns; out may be x.
        weight_ptr: N contiguous elements.
        M, N: sizes, at least 1.
        stride_xm, stride_xn, stride_om, stride_on: row and column strides, in elements.
        BLOCK_SIZE_M: rows of a block, a power of two.
        BLOCK_SIZE_N: the smallest power of two that is at least N.
        X_TRANSPOSED, X_VECTOR, OUT_VECTOR, EVEN_N, WIDE: those of softmax's `whole_kernel`.
        PDL: see `await_predecessor`.
        EPS: what is added to the mean of the squares.
        OFFSET: what is added to the weight.
    """
    M, N, stride_xm, stride_xn, stride_om = divisible(
        (M, N), (stride_xm, stride_xn, stride_om), X_TRANSPOSED, X_VECTOR, OUT_VECTOR
    )
    await_predecessor(PDL)
    rows = tl.arange(0, BLOCK_SIZE_M)
    columns = tl.arange(0, BLOCK_SIZE_N)
    start = tl.cast(tl.program_id(0), tl.int64) * BLOCK_SIZE_M
    mask = inside(rows, columns, M - start, N, EVEN_N)
    x_tile = x_ptr + start * stride_xm + offsets_of(rows, columns, stride_xm, stride_xn, WIDE)
    x = tl.load(x_tile, mask=mask, other=0.0).to(tl.float32)
    # Of long rows x and the weight together take more registers than threads have.
    LONG: tl.constexpr = BLOCK_SIZE_N > 8192
    if not LONG:
        weight = load_weight(weight_ptr, columns, N, EVEN_N, OFFSET)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / N + EPS)[:, None]
    if LONG:
        weight = load_weight(weight_ptr, columns, N, EVEN_N, OFFSET)
    out_tile = out_ptr + start * stride_om + offsets_of(rows, columns, stride_om, stride_on, WIDE)
    tl.store(out_tile, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=mask)
