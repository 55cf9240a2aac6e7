"""The `pointer` kernel itself: one output tile a program, operands loaded through pointers.

The tile order, the software pipeline over K and the masks follow Triton's tutorial 03; the differences are named where
they are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tuner.kernels.epilogue import activate, saturate


@triton.jit
def known_multiple(x, divisor: tl.constexpr):  # noqa: ANN201  jit bodies take no such annotation
    """`x`, which the host knows to be a multiple of `divisor`, so written that the compiler knows it too.

    Triton's own specialization knows multiples of 16 and nothing below: bfloat16 rows of 8 elements' alignment (16
    bytes) would load 2 bytes at a time, many times slower.
    """
    return x // divisor * divisor


@triton.jit(
    # One binary for every size: nothing is specialized but what the constexprs below and a stride of 1 say.
    do_not_specialize=["M", "N", "K", "GROUP_SIZE_M"],
    do_not_specialize_on_alignment=["stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn"],
)
def matmul_kernel(  # noqa: ANN201, PLR0915, PLR0917
    a_ptr,
    b_ptr,
    c_ptr,
    bias_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    GROUP_SIZE_M,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    A_VECTOR: tl.constexpr,
    B_VECTOR: tl.constexpr,
    C_VECTOR: tl.constexpr,
    EVEN_K: tl.constexpr,
    WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    MAX_IMPRECISE: tl.constexpr,
):
    """C[M, N] = activation(A[M, K] @ B[K, N] + bias[N]), summed in float32.

    M, N and K are at least 1. `bias_ptr` may be None. GROUP_SIZE_M (1 or more) rows of tiles are swept together, for
    the L2's sake. A_VECTOR, B_VECTOR, C_VECTOR: the operand's leading stride and contiguous extent are multiples of
    so many elements; A_TRANSPOSED, B_TRANSPOSED: which extent that is. EVEN_K: BLOCK_SIZE_K divides K. WIDE: offsets
    within a tile may pass 2^31. MAX_IMPRECISE: see docs/numerics.md.
    """
    pid = tl.program_id(0)
    # Rounded up without adding: M + BLOCK_SIZE_M would overflow near 2^31.
    tiles_m = (M - 1) // BLOCK_SIZE_M + 1
    tiles_n = (N - 1) // BLOCK_SIZE_N + 1
    tiles_of_group = GROUP_SIZE_M * tiles_n
    first_m = pid // tiles_of_group * GROUP_SIZE_M
    rows_of_group = min(tiles_m - first_m, GROUP_SIZE_M)
    pid_m = first_m + pid % tiles_of_group % rows_of_group
    pid_n = pid % tiles_of_group // rows_of_group

    if A_TRANSPOSED:
        M = known_multiple(M, A_VECTOR)
        stride_ak = known_multiple(stride_ak, A_VECTOR)
    else:
        K = known_multiple(K, A_VECTOR)
        stride_am = known_multiple(stride_am, A_VECTOR)
    if B_TRANSPOSED:
        K = known_multiple(K, B_VECTOR)
        stride_bn = known_multiple(stride_bn, B_VECTOR)
    else:
        N = known_multiple(N, B_VECTOR)
        stride_bk = known_multiple(stride_bk, B_VECTOR)
    N = known_multiple(N, C_VECTOR)
    stride_cm = known_multiple(stride_cm, C_VECTOR)

    # A tile's base moves in 64-bit scalars, offsets within it stay 32-bit unless WIDE. Rows are compared with what is
    # left of M, so that the index itself cannot overflow. No index modulo M or N, as the tutorial has it: that breaks
    # the vectors where this dimension is the contiguous one.
    offs_m = tl.arange(0, BLOCK_SIZE_M)
    offs_n = tl.arange(0, BLOCK_SIZE_N)
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    in_m = offs_m < M - pid_m * BLOCK_SIZE_M
    in_n = offs_n < N - pid_n * BLOCK_SIZE_N
    if WIDE:
        offs_m = offs_m.to(tl.int64)
        offs_n = offs_n.to(tl.int64)
        offs_k = offs_k.to(tl.int64)
    start_m = (pid_m * BLOCK_SIZE_M).to(tl.int64)
    start_n = (pid_n * BLOCK_SIZE_N).to(tl.int64)
    a_tile = a_ptr + start_m * stride_am
    b_tile = b_ptr + start_n * stride_bn
    a_offsets = offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_offsets = offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    a_step = tl.cast(stride_ak, tl.int64) * BLOCK_SIZE_K
    b_step = tl.cast(stride_bk, tl.int64) * BLOCK_SIZE_K

    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for step in range((K - 1) // BLOCK_SIZE_K + 1):
        if EVEN_K:
            a = tl.load(a_tile + a_offsets, mask=in_m[:, None], other=0.0)
            b = tl.load(b_tile + b_offsets, mask=in_n[None, :], other=0.0)
        else:
            in_k = offs_k < K - step * BLOCK_SIZE_K
            a = tl.load(a_tile + a_offsets, mask=in_m[:, None] & in_k[None, :], other=0.0)
            b = tl.load(b_tile + b_offsets, mask=in_k[:, None] & in_n[None, :], other=0.0)
        accumulator = tl.dot(a, b, accumulator, input_precision=PRECISION, max_num_imprecise_acc=MAX_IMPRECISE)
        a_tile += a_step
        b_tile += b_step

    if bias_ptr is not None:
        bias = tl.load(bias_ptr + start_n + offs_n, mask=in_n, other=0.0)
        accumulator += bias.to(tl.float32)[None, :]
    accumulator = activate(accumulator, ACTIVATION)
    c_offsets = offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    c_tile = c_ptr + start_m * stride_cm + start_n * stride_cn
    out_dtype: tl.constexpr = c_ptr.dtype.element_ty
    value = saturate(accumulator, out_dtype).to(out_dtype)
    tl.store(c_tile + c_offsets, value, mask=in_m[:, None] & in_n[None, :])
