"""Computes a gated linear layer of few rows without matrix instructions, whose rows would be mostly padding."""

from __future__ import annotations

import triton.language as tl

from tuner.kernels.base import blocks
from tuner.kernels.base.epilogue import activate
from tuner.kernels.gated.jit import AFTER_LAST_STEP


@blocks.any_size
def gated_gemv_kernel(  # noqa: ANN201, PLR0917  jit bodies take no such annotation
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
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    VECTOR_N: tl.constexpr,
    VECTOR_K: tl.constexpr,
    FOLD: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute all rows of activation(x @ gate.T) * (x @ up.T), half as many columns per program as BLOCK_SIZE_N.

    BLOCK_SIZE_M is a power of two that is at least M. Every thread keeps its own sums, which are added up at the end.
    FOLD: number of neighbouring products of a row in a thread that are added into one register. The other arguments
    are described at `gated.jit.gated_kernel`.
    """
    HALF: tl.constexpr = BLOCK_SIZE_N // 2
    N = blocks.known_multiple(N, VECTOR_N)
    K = blocks.known_multiple(K, VECTOR_K)
    stride_am = blocks.known_multiple(stride_am, VECTOR_K)
    stride_bn = blocks.known_multiple(stride_bn, VECTOR_K)
    start_n = tl.cast(tl.program_id(0), tl.int64) * HALF
    offs_m = tl.arange(0, BLOCK_SIZE_M)
    offs_n = tl.arange(0, HALF)
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    in_m = offs_m < M
    in_n = offs_n < (N - start_n).to(tl.int32)
    if WIDE:
        offs_m = offs_m.to(tl.int64)
        offs_n = offs_n.to(tl.int64)
    gate_first = gate_ptr + start_n * stride_bn
    up_first = up_ptr + start_n * stride_bn
    x_offsets = offs_m[:, None, None] * stride_am + offs_k[None, None, :]
    offsets = offs_n[None, :, None] * stride_bn + offs_k[None, None, :]
    blocks.await_predecessor(PDL, AFTER_LAST_STEP)
    gates = tl.zeros((BLOCK_SIZE_M, HALF, BLOCK_SIZE_K // FOLD), dtype=tl.float32)
    ups = tl.zeros((BLOCK_SIZE_M, HALF, BLOCK_SIZE_K // FOLD), dtype=tl.float32)
    shape: tl.constexpr = (BLOCK_SIZE_M, HALF, BLOCK_SIZE_K // FOLD, FOLD)
    for step in range(blocks.count_blocks(K, BLOCK_SIZE_K)):
        x_mask = in_m[:, None, None]
        mask = in_n[None, :, None]
        if not EVEN_K:
            in_k = (offs_k < K - step * BLOCK_SIZE_K)[None, None, :]
            x_mask = x_mask & in_k
            mask = mask & in_k
        at = step * BLOCK_SIZE_K
        gate = tl.load(gate_first + at + offsets, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        up = tl.load(up_first + at + offsets, mask=mask, other=0.0, eviction_policy="evict_first").to(tl.float32)
        x = tl.load(x_ptr + at + x_offsets, mask=x_mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
        if FOLD > 1:
            gates += tl.sum(tl.reshape(x * gate, shape), axis=3)
            ups += tl.sum(tl.reshape(x * up, shape), axis=3)
        else:
            gates += x * gate
            ups += x * up
    blocks.release_last(PDL, AFTER_LAST_STEP)
    values = activate(tl.sum(gates, axis=2), ACTIVATION) * tl.sum(ups, axis=2)
    out_first = out_ptr + start_n
    tl.store(
        out_first + offs_m[:, None] * stride_cm + offs_n[None, :],
        values.to(out_ptr.dtype.element_ty),
        mask=in_m[:, None] & in_n[None, :],
    )
