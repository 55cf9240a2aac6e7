"""The op `softmax`: a repeated call runs its launch plan; any other is checked, looked up and launched.

torch.compile and torch.export see it as the operator `triton_tuner::softmax`, unless it is given `out`.
"""

from __future__ import annotations

import math
from typing import cast

import torch

from tuner.kernels.base.operands import is_aligned, placement
from tuner.kernels.ops import autocast, operators, rows
from tuner.kernels.ops.arguments import check_gradients, is_followed
from tuner.kernels.ops.elementwise_arguments import check_dimensions, check_dtype, check_out, check_rows
from tuner.kernels.ops.operators import Planned, define, plan_first
from tuner.kernels.ops.problem import problem_of
from tuner.kernels.ops.rows import RowsCall
from tuner.launch.call_cache import CallCache, is_tracing, untraced
from tuner.problem import Problem, dtype

CALL_CACHE = CallCache()


def softmax(x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Compute every row's softmax, exp(x - max) / sum(exp(x - max)), with a tuned Triton kernel on x's current stream.

    It is computed in float32 and rounded once, and is deterministic. The config comes from `tuner.lookup`; nothing is
    measured and nothing written. A row becomes NaN if it contains NaN or +inf, or only -inf. Rows too long for one
    block keep a running maximum; source: Milakov and Gimelshein, arXiv:1805.02867.

    Args:
        x: [..., N], float32, float16 or bfloat16, any strides; leading dimensions are flattened into M (copied only
            where torch must). Along another dimension: `softmax(x.movedim(d, -1))`.
        out: [..., N] to write into, any strides without overlap; x itself too.

    Returns:
        `out`, or a new tensor [..., N].

    Raises:
        InputError: an argument is not a dense tensor; shapes, dtypes or devices do not fit; or the operand requires a
            gradient.
        KernelError: no installed kernel serves the problem on this device.
    """
    found = CALL_CACHE.run_one(x) if out is None else CALL_CACHE.run((x,), (), out)
    if found is not None:
        return found
    if is_tracing() and out is not None:
        return cast(torch.Tensor, untraced(softmax)(x, out=out))
    if out is None and autocast.is_on(x) and x.is_cuda and x.dtype in autocast.HALVES:
        return softmax(x.float())  # on the CPU autocast leaves softmax alone
    if out is None and is_followed():
        return operators.call("softmax", x=x)
    return _checked_call(x, out)


def _checked_call(given: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Run a call whose arguments must be checked, and store its plan."""
    x = check_rows(given)
    rows.check_columns(x, "torch.softmax(x, -1)")
    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else check_out(out, x)
    check_gradients(x, out)
    if x.numel() == 0:
        return result
    matrix = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    call = RowsCall(CALL_CACHE, (given,), (), out)
    return call.launch(matrix, None, result, lambda flat: problem_of(_problem, (matrix, flat)))


def _problem(matrix: torch.Tensor, out: torch.Tensor) -> Problem:
    return Problem(
        *rows.sizes(matrix),
        1,
        dtype=dtype.name_of(matrix.dtype),
        layout="tn" if placement(matrix).transposed else "nn",
        # A transposed output is written element by element, even if its address is aligned.
        aligned=is_aligned(matrix, out) and out.stride(1) == 1,
        op="softmax",
    )


def _shaped(x: torch.Tensor) -> torch.Tensor:
    """The result's shape and dtype, as a tensor without values; the operand has none either."""
    check_dtype("x", x)
    check_dimensions(x)
    return x.new_empty(x.shape)


def _planned(x: torch.Tensor) -> Planned:
    return (x,), ()


define("softmax(Tensor x) -> Tensor", softmax, _shaped)
plan_first("softmax", CALL_CACHE, _planned)
