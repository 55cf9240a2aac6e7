"""The plain tiled kernel of Triton's matrix multiplication tutorial under `triton.autotune`, with its config list."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tuner.problem import Problem

CONFIGS = (
    (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 128, 32, 4, 4),
    (128, 32, 32, 4, 4), (64, 32, 32, 5, 2), (32, 64, 32, 5, 2), (128, 256, 128, 3, 8), (256, 128, 128, 3, 8),
    (256, 64, 128, 4, 4), (64, 256, 128, 4, 4), (128, 128, 128, 4, 4), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4),
    (128, 32, 64, 4, 4),
)  # fmt: skip
"""The tutorial's list for CUDA: BLOCK_SIZE_M, N, K, num_stages, num_warps; GROUP_SIZE_M is 8.

Source: https://triton-lang.org/main/getting-started/tutorials/03-matrix-multiplication.html
"""


# The tutorial's key is M, N, K; strides and precision are added because a suite may hold several layouts.
@triton.autotune(
    [
        triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": 8}, num_stages=stages, num_warps=warps)
        for m, n, k, stages, warps in CONFIGS
    ],
    key=["M", "N", "K", "sam", "sak", "sbk", "sbn", "PRECISION"],
)
@triton.jit
def tiled(
    a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, PRECISION: tl.constexpr,
) -> None:  # fmt: skip
    """Multiply as the tutorial does, with grouped tiles, rows wrapped by modulo, and K masked."""
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    band = pid // (GROUP * tiles_n)
    height = min(tiles_m - band * GROUP, GROUP)
    pid_m = band * GROUP + (pid % (GROUP * tiles_n)) % height
    pid_n = (pid % (GROUP * tiles_n)) // height
    rows = (pid_m * BM + tl.arange(0, BM)) % M
    columns = (pid_n * BN + tl.arange(0, BN)) % N
    depth = tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * sam + depth[None, :] * sak
    b_ptrs = b_ptr + depth[:, None] * sbk + columns[None, :] * sbn
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(tl.cdiv(K, BK)):
        left = K - start * BK
        a = tl.load(a_ptrs, mask=depth[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=depth[:, None] < left, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        a_ptrs += BK * sak
        b_ptrs += BK * sbk
    out_rows = pid_m * BM + tl.arange(0, BM)
    out_columns = pid_n * BN + tl.arange(0, BN)
    inside = (out_rows[:, None] < M) & (out_columns[None, :] < N)
    tl.store(c_ptr + out_rows[:, None] * scm + out_columns[None, :] * scn, total.to(c_ptr.dtype.element_ty), inside)


def refusal(problem: Problem) -> str | None:
    """Return why the tutorial's kernel cannot compute a problem, or None when it can."""
    if problem.op != "matmul" or problem.extras or problem.epilogue != "none":
        return "the tutorial's kernel multiplies two matrices, without scales or an epilogue"
    if problem.a_dtype != problem.b_dtype:
        return "the tutorial's kernel takes two operands of one dtype"
    if "int" in problem.a_dtype:
        return "the tutorial's kernel sums in float32"
    return None


def multiply(inputs: Any) -> torch.Tensor:
    """Launch the tutorial's kernel; the first launch of a problem tunes.

    Args:
        inputs: operands of the op `matmul`: a [M, K], b [K, N], out [M, N] and the problem.
    """
    a, b, c = inputs.a, inputs.b, inputs.output
    (m, k), n = a.shape, b.shape[1]
    # Only float32 has a precision; for other dtypes Triton ignores this value, which is its default.
    precision = "tf32" if inputs.problem.precision == "default" else inputs.problem.precision
    tiled[lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), PRECISION=precision
    )
    return c
