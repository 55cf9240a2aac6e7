"""Computes x + y in contiguous blocks (kernel `add_block`)."""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.base.blocks import any_size, await_predecessor


@triton.jit
def add_whole(x_ptr, y_ptr, out_ptr, start, lanes, stride_x, stride_y, stride_out):  # noqa: ANN201, PLR0917  jit body
    """Add a block that lies entirely inside the vectors, without a mask, so that loads are as wide as possible."""
    x = tl.load(x_ptr + start * stride_x + lanes * stride_x)
    y = tl.load(y_ptr + start * stride_y + lanes * stride_y)
    out = (x.to(tl.float32) + y.to(tl.float32)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + start * stride_out + lanes * stride_out, out)


@triton.jit
def add_rest(x_ptr, y_ptr, out_ptr, start, lanes, M, stride_x, stride_y, stride_out):  # noqa: ANN201, PLR0917
    """Add the last block, which may be partial."""
    mask = lanes < M - start
    x = tl.load(x_ptr + start * stride_x + lanes * stride_x, mask=mask, other=0.0)
    y = tl.load(y_ptr + start * stride_y + lanes * stride_y, mask=mask, other=0.0)
    out = (x.to(tl.float32) + y.to(tl.float32)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + start * stride_out + lanes * stride_out, out, mask=mask)


@any_size
def add_kernel(  # noqa: ANN201, PLR0917
    x_ptr,
    y_ptr,
    out_ptr,
    M,
    stride_x,
    stride_y,
    stride_out,
    BLOCK_SIZE: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute out = x + y, summed in float32.

    Args:
        x_ptr, y_ptr, out_ptr: vectors of M elements; out may be one of the others.
        M: number of elements, at least 1.
        stride_x, stride_y, stride_out: in elements.
        BLOCK_SIZE: elements of a block, a power of two.
        WIDE: whether offsets within a block may exceed 2^31.
        PDL: see `await_predecessor`.
    """
    lanes = tl.arange(0, BLOCK_SIZE)
    if WIDE:
        lanes = lanes.to(tl.int64)
    program = tl.program_id(0)
    whole = M // BLOCK_SIZE
    await_predecessor(PDL)
    start = tl.cast(program, tl.int64) * BLOCK_SIZE
    if program < whole:
        add_whole(x_ptr, y_ptr, out_ptr, start, lanes, stride_x, stride_y, stride_out)
    else:
        add_rest(x_ptr, y_ptr, out_ptr, start, lanes, M, stride_x, stride_y, stride_out)
