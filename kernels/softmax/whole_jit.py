"""Softmax of rows that fit into registers (kernel `softmax_whole`), and device code that the other kernels share.

All kernels subtract the row's maximum, sum in float32 in an order that depends only on the config, and multiply by the
sum's reciprocal. As in torch, a row becomes NaN if it contains NaN or +inf, or only -inf.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import any_size, await_predecessor, known_multiple


@triton.jit
def offsets_of(rows, columns, stride_m, stride_n, WIDE: tl.constexpr):  # noqa: ANN201
    """Offsets in elements from a tile's first element to each of its elements."""
    if WIDE:
        rows = rows.to(tl.int64)
        columns = columns.to(tl.int64)
    return rows[:, None] * stride_m + columns[None, :] * stride_n


@triton.jit
def inside(rows, columns, rows_left, columns_left, EVEN_N: tl.constexpr):  # noqa: ANN201
    """The mask of the tile's elements that belong to the matrix; columns need none if blocks divide a row."""
    mask = (rows < rows_left)[:, None]
    if not EVEN_N:
        mask = mask & (columns < columns_left)[None, :]
    return mask


@triton.jit
def divisible(extents, strides, X_TRANSPOSED: tl.constexpr, X_VECTOR: tl.constexpr, OUT_VECTOR: tl.constexpr):  # noqa: ANN201
    """Return sizes and strides of two matrices as known multiples, see `known_multiple`."""
    M, N = extents
    stride_xm, stride_xn, stride_om = strides
    stride_om = known_multiple(stride_om, OUT_VECTOR)
    N = known_multiple(N, OUT_VECTOR)
    if X_TRANSPOSED:
        stride_xn = known_multiple(stride_xn, X_VECTOR)
        M = known_multiple(M, X_VECTOR)
    else:
        stride_xm = known_multiple(stride_xm, X_VECTOR)
        N = known_multiple(N, X_VECTOR)
    return M, N, stride_xm, stride_xn, stride_om


@triton.jit
def opaque(x):  # noqa: ANN201
    """Return 16-bit x, two to a register, as a new value to the compiler, so that it cannot keep results from x."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)


@any_size
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
    PDL: tl.constexpr,
    RECOMPUTED: tl.constexpr,
):
    """Compute rows that fit into a program's registers, which are read once and written once.

    Args:
        x_ptr, out_ptr: matrices of M rows and N columns; out may be x.
        M, N: sizes, at least 1.
        stride_xm, stride_xn, stride_om, stride_on: row and column strides, in elements.
        BLOCK_SIZE_M: rows of a block, a power of two.
        BLOCK_SIZE_N: the smallest power of two that is at least N.
        X_TRANSPOSED: whether x is stored transposed, so that neighbouring rows are contiguous.
        X_VECTOR: a power of two that divides stride_xm and N (if transposed, stride_xn and M).
        OUT_VECTOR: a power of two that divides stride_om and N.
        EVEN_N: whether BLOCK_SIZE_N divides N.
        WIDE: whether offsets within a tile may exceed 2^31.
        PDL: see `await_predecessor`.
        RECOMPUTED: whether x stays packed in registers, 16 bits per value, and exponentials are computed twice.
    """
    M, N, stride_xm, stride_xn, stride_om = divisible(
        (M, N), (stride_xm, stride_xn, stride_om), X_TRANSPOSED, X_VECTOR, OUT_VECTOR
    )
    await_predecessor(PDL)
    block = tl.program_id(0)
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
