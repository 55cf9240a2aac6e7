"""What is applied to a sum before it is stored; activations.py has it in torch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):  # noqa: ANN201  jit bodies take no such annotation
    """Apply an activation of `tuner.problem.problem.ACTIVATIONS` to float32 values; a NaN stays a NaN.

    gelu is the tanh form, 0.5·x·(1 + tanh(u)), written as the equal x·sigmoid(2u) because the interpreter has no tanh.
    It is stable: where exp overflows to infinity, the sigmoid becomes 0 or 1.
    """
    if ACTIVATION == "relu":
        # Not tl.maximum, which turns a NaN into 0.
        x = tl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "leaky_relu":
        x = tl.where(x < 0.0, 0.01 * x, x)
    elif ACTIVATION == "gelu":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # 2·sqrt(2/pi)
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    else:
        tl.static_assert(ACTIVATION == "none", "unknown activation")
    return x


@triton.jit
def saturate(x, dtype: tl.constexpr):  # noqa: ANN201
    """Clamp float32 values to the range of an 8-bit float, as NVIDIA's conversion does; do nothing for other dtypes."""
    if dtype == tl.float8e4nv:
        x = tl.where(x > 448.0, 448.0, tl.where(x < -448.0, -448.0, x))
    elif dtype == tl.float8e5:
        x = tl.where(x > 57344.0, 57344.0, tl.where(x < -57344.0, -57344.0, x))
    return x


@triton.jit
def finish(  # noqa: ANN201, PLR0917
    sums,
    vectors,
    start,
    left,
    BIAS_ALONG_M: tl.constexpr,
    SCALING: tl.constexpr,
    ACTIVATION: tl.constexpr,
    out_dtype: tl.constexpr,
):
    """Compute the output's values from a tile's sums: scale, add the bias, activate and round to `out_dtype`.

    vectors: pointers to the bias and to the scales of A and of B, each of which may be None.
    start, left: the tile's first row and column, and the rows and columns from there to the matrix's end.
    BIAS_ALONG_M: the bias has one value per row, because the operands are exchanged.
    SCALING: "none"; "scalar": one scale per operand; "row": one scale for each row of A and each column of B.
    """
    bias_ptr, a_scale_ptr, b_scale_ptr = vectors
    start_m, start_n = start
    rows_left, columns_left = left
    if sums.dtype == tl.int32 and SCALING == "none":
        tl.static_assert(bias_ptr is None and ACTIVATION == "none", "int32 sums without a scale have no epilogue")
        values = sums
    else:
        values = sums.to(tl.float32)
    offs_m = tl.arange(0, sums.shape[0])
    offs_n = tl.arange(0, sums.shape[1])
    if SCALING == "scalar":
        values *= tl.load(a_scale_ptr) * tl.load(b_scale_ptr)
    elif SCALING == "row":
        values *= tl.load(a_scale_ptr + start_m + offs_m, mask=offs_m < rows_left, other=0.0)[:, None]
        values *= tl.load(b_scale_ptr + start_n + offs_n, mask=offs_n < columns_left, other=0.0)[None, :]
    else:
        tl.static_assert(SCALING == "none", "unknown scaling")
    if bias_ptr is not None:
        if BIAS_ALONG_M:
            bias = tl.load(bias_ptr + start_m + offs_m, mask=offs_m < rows_left, other=0.0)[:, None]
        else:
            bias = tl.load(bias_ptr + start_n + offs_n, mask=offs_n < columns_left, other=0.0)[None, :]
        values += bias.to(tl.float32)
    if ACTIVATION != "none":
        values = activate(values, ACTIVATION)
    return saturate(values, out_dtype).to(out_dtype)
