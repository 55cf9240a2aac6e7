"""Computes a gated linear layer, activation(x @ gate.T) * (x @ up.T), from operands loaded through pointers.

Each program computes one tile of both products, of which only their gated product is stored.
"""

from __future__ import annotations

import triton.language as tl

from tuner.kernels.base import blocks
from tuner.kernels.base.epilogue import activate
from tuner.kernels.space import refinements

AFTER_LAST_STEP = tl.constexpr(refinements.AFTER_LAST_STEP)
"""When these kernels let the next one start (docs/decisions.md, 127)."""


@blocks.any_size
def gated_kernel(  # noqa: ANN201, PLR0915, PLR0917  jit bodies take no such annotation
    x_ptr,
    gate_ptr,
    up_ptr,
    out_ptr,
    M,
    N,
    K,
    stride_am,
    stride_bn,
    stride_cm,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    SWAP_AB: tl.constexpr,
    VECTOR_N: tl.constexpr,
    VECTOR_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute one tile of activation(x @ gate.T) * (x @ up.T), both products at once, summed in float32.

    Args:
        x_ptr: [M, K], contiguous rows.
        gate_ptr, up_ptr: [N, K], contiguous rows.
        out_ptr: [M, N], contiguous rows.
        M, N, K: rows of x, of each weight, and columns of both.
        stride_am, stride_bn, stride_cm: elements from row to row of x, of each weight and of the result.
        GROUP_SIZE_M: rows of tiles that share columns of the weights.
        BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K: rows and columns of a tile, and the step along K. Half of the columns
            are gate's, the others up's.
        SWAP_AB: whether the transposed products are computed, so that the weights' rows fill the tensor cores' rows.
        VECTOR_N, VECTOR_K: powers of two that divide N and the result's stride, and K and all other strides.
        EVEN_K: whether BLOCK_SIZE_K divides K.
        WIDE: whether offsets within a tile need 64 bits.
        ACTIVATION, PRECISION: see `epilogue.activate` and `tl.dot`.
        PDL: see `blocks.await_predecessor`; the next kernel starts after the last step along K.
    """
    HALF: tl.constexpr = BLOCK_SIZE_N // 2
    tiles_n = blocks.count_blocks(N, HALF)
    pid_m, pid_n = blocks.grouped(tl.program_id(0), blocks.count_blocks(M, BLOCK_SIZE_M), tiles_n, GROUP_SIZE_M)
    N = blocks.known_multiple(N, VECTOR_N)
    K = blocks.known_multiple(K, VECTOR_K)
    stride_am = blocks.known_multiple(stride_am, VECTOR_K)
    stride_bn = blocks.known_multiple(stride_bn, VECTOR_K)
    stride_cm = blocks.known_multiple(stride_cm, VECTOR_N)
    start_m = tl.cast(pid_m, tl.int64) * BLOCK_SIZE_M
    start_n = tl.cast(pid_n, tl.int64) * HALF
    offs_m = tl.arange(0, BLOCK_SIZE_M)
    offs_n = tl.arange(0, HALF)
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    in_m = offs_m < M - start_m
    in_n = offs_n < (N - start_n).to(tl.int32)
    if WIDE:
        offs_m = offs_m.to(tl.int64)
        offs_n = offs_n.to(tl.int64)
    x_first = x_ptr + start_m * stride_am
    gate_first = gate_ptr + start_n * stride_bn
    up_first = up_ptr + start_n * stride_bn
    blocks.await_predecessor(PDL, AFTER_LAST_STEP)
    steps = blocks.count_blocks(K, BLOCK_SIZE_K)
    if SWAP_AB:
        gate = tl.zeros((HALF, BLOCK_SIZE_M), dtype=tl.float32)
        up = tl.zeros((HALF, BLOCK_SIZE_M), dtype=tl.float32)
        x_offsets = offs_m[None, :] * stride_am + offs_k[:, None]
        offsets = offs_n[:, None] * stride_bn + offs_k[None, :]
        for step in range(steps):
            start = step * BLOCK_SIZE_K
            if EVEN_K:
                x = tl.load(x_first + start + x_offsets, mask=in_m[None, :], other=0.0)
                g = tl.load(gate_first + start + offsets, mask=in_n[:, None], other=0.0)
                u = tl.load(up_first + start + offsets, mask=in_n[:, None], other=0.0)
            else:
                in_k = offs_k < K - start
                x = tl.load(x_first + start + x_offsets, mask=in_k[:, None] & in_m[None, :], other=0.0)
                g = tl.load(gate_first + start + offsets, mask=in_n[:, None] & in_k[None, :], other=0.0)
                u = tl.load(up_first + start + offsets, mask=in_n[:, None] & in_k[None, :], other=0.0)
            gate = tl.dot(g, x, gate, input_precision=PRECISION)
            up = tl.dot(u, x, up, input_precision=PRECISION)
        blocks.release_last(PDL, AFTER_LAST_STEP)
        values = tl.trans((activate(gate, ACTIVATION) * up).to(out_ptr.dtype.element_ty))
    else:
        gate = tl.zeros((BLOCK_SIZE_M, HALF), dtype=tl.float32)
        up = tl.zeros((BLOCK_SIZE_M, HALF), dtype=tl.float32)
        x_offsets = offs_m[:, None] * stride_am + offs_k[None, :]
        offsets = offs_n[None, :] * stride_bn + offs_k[:, None]
        for step in range(steps):
            start = step * BLOCK_SIZE_K
            if EVEN_K:
                x = tl.load(x_first + start + x_offsets, mask=in_m[:, None], other=0.0)
                g = tl.load(gate_first + start + offsets, mask=in_n[None, :], other=0.0)
                u = tl.load(up_first + start + offsets, mask=in_n[None, :], other=0.0)
            else:
                in_k = offs_k < K - start
                x = tl.load(x_first + start + x_offsets, mask=in_m[:, None] & in_k[None, :], other=0.0)
                g = tl.load(gate_first + start + offsets, mask=in_k[:, None] & in_n[None, :], other=0.0)
                u = tl.load(up_first + start + offsets, mask=in_k[:, None] & in_n[None, :], other=0.0)
            gate = tl.dot(x, g, gate, input_precision=PRECISION)
            up = tl.dot(x, u, up, input_precision=PRECISION)
        blocks.release_last(PDL, AFTER_LAST_STEP)
        values = (activate(gate, ACTIVATION) * up).to(out_ptr.dtype.element_ty)
    out_first = out_ptr + start_m * stride_cm + start_n
    tl.store(out_first + offs_m[:, None] * stride_cm + offs_n[None, :], values, mask=in_m[:, None] & in_n[None, :])
