"""The op `rms_norm`: a repeated call runs its launch plan; any other is checked, looked up and launched.

torch.compile and torch.export see it as the operator `triton_tuner::rms_norm`, unless it is given `out`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import cast

import torch

from tuner.errors import InputError, ProblemError
from tuner.kernels.base.operands import VECTOR_BYTES, is_aligned
from tuner.kernels.ops import autocast, operators, rows
from tuner.kernels.ops.arguments import check_gradients, check_together, is_followed, shown
from tuner.kernels.ops.elementwise_arguments import (
    check_alike,
    check_dimensions,
    check_dtype,
    check_input,
    check_out,
    check_rows,
)
from tuner.kernels.ops.operators import Planned, define, plan_first
from tuner.kernels.ops.problem import problem_of
from tuner.kernels.ops.rows import RowsCall
from tuner.launch import compat
from tuner.launch.call_cache import CallCache, any_m, is_tracing, untraced
from tuner.problem import Problem, dtype
from tuner.problem.gemm_fields import check_eps, is_eps

CALL_CACHE = CallCache()


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, offset: float = 0.0, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute x / sqrt(mean(x²) + eps) * (offset + weight) of every row with a tuned kernel on x's current stream.

    It is computed in float32 and rounded once, and is deterministic. The config comes from `tuner.lookup`; nothing is
    measured and nothing written. A row becomes NaN if it contains NaN. Of a row with an infinity, that element becomes
    NaN and the others 0; a row whose squares exceed float32 becomes 0. Source: Zhang and Sennrich, arXiv:1910.07467.

    Args:
        x: [..., N], float32, float16 or bfloat16; leading dimensions are flattened into M. It is copied where its rows
            are not contiguous, or where torch cannot flatten it in place.
        weight: [N], of x's dtype.
        eps: what is added to the mean of the squares, from 1.2e-38 to 3.4e38.
        offset: what is added to the weight in float32, 1.0 for Gemma's norms: 0, or from 1.2e-38 to 3.4e38 in size. It
            is compiled in, and shares the configs of norms that have none.
        out: [..., N] to write into, any strides without overlap; x itself too.

    Returns:
        `out`, or a new tensor [..., N].

    Raises:
        InputError: an argument is not a dense tensor; shapes, dtypes or devices do not fit; eps or offset is no such
            number; or an operand requires a gradient.
        KernelError: no installed kernel serves the problem on this device.
    """
    options = (eps, offset)
    found = CALL_CACHE.run_two(x, weight, options) if out is None else CALL_CACHE.run((x, weight), options, out)
    if found is not None:
        return found
    if is_tracing() and out is not None:
        return cast(torch.Tensor, untraced(rms_norm)(x, weight, eps, offset=offset, out=out))
    if out is None and autocast.is_on(x) and x.is_cuda and _is_widened() and (_is_half(x) or _is_half(weight)):
        return rms_norm(x.float(), weight.float(), eps, offset=offset)
    if out is None and is_followed():
        return operators.call("rms_norm", _check_eps(eps), _check_offset(offset), x=x, weight=weight)
    return checked_call(x, weight, eps, out, offset=offset, cache=CALL_CACHE, options=options)


@functools.cache
def _is_widened() -> bool:
    """Whether autocast casts the operands of torch's own to float32 on a GPU; on the CPU it leaves them alone."""
    return bool(compat.has_kernel_for("aten::rms_norm", "AutocastCUDA"))


def _is_half(tensor: object) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.dtype in autocast.HALVES


def checked_call(
    given: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor | None = None,
    *,
    offset: float = 0.0,
    cache: CallCache,
    options: tuple[Hashable, ...],
    serves_rows: Callable[[int], bool] = any_m,
) -> torch.Tensor:
    """Run a call whose arguments must be checked, and store its plan under some options.

    Of `serves_rows` see `RowsCall`, of all else `rms_norm`.
    """
    x, scale = check_rows(given), check_input("weight", weight)
    rows.check_columns(x, "torch.nn.functional.rms_norm")
    _check_weight(x, scale)
    eps, offset = _check_eps(eps), _check_offset(offset)
    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else check_out(out, x, scale)
    check_gradients(x, weight, out)
    if x.numel() == 0:
        return result
    matrix, scale = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), scale.contiguous()
    if matrix.shape[1] > 1 and matrix.stride(1) != 1:
        matrix = matrix.contiguous()
    call = RowsCall(cache, (given, weight), options, out, serves_rows)
    return call.launch(
        matrix, scale, result, lambda flat: problem_of(_problem, (matrix, scale, flat), eps), offset=offset
    )


def _check_weight(x: torch.Tensor, weight: torch.Tensor) -> None:
    if weight.shape != x.shape[-1:]:
        raise InputError(f"weight has shape {shown(weight)}: expected [{x.shape[-1]}], as long as x's rows")
    check_alike(x, weight, "weight")


def _check_eps(given: float) -> float:
    try:
        return check_eps(given)
    except ProblemError as e:
        raise InputError(str(e)) from None


def _check_offset(given: object) -> float:
    """Return what is added to the weight as a float: 0, or a number that is normal in float32."""
    if isinstance(given, (int, float)) and not isinstance(given, bool) and (given == 0 or is_eps(abs(given))):
        return float(given) or 0.0  # never -0.0, which would be another binary
    raise InputError(f"offset is {given!r:.60}: expected 0, or a number from 1.2e-38 to 3.4e38 in size, as 1.0")


def _problem(matrix: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float) -> Problem:
    return Problem(
        *rows.sizes(matrix),
        1,
        dtype=dtype.name_of(matrix.dtype),
        # Columns that lie apart are written element by element, even if their address is aligned.
        aligned=is_aligned(matrix, out) and out.stride(1) == 1 and weight.data_ptr() % VECTOR_BYTES == 0,
        op="rms_norm",
        extras={"eps": eps},
    )


def _run(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> torch.Tensor:
    return rms_norm(x, weight, eps, offset=offset)


def _shaped(x: torch.Tensor, weight: torch.Tensor, _eps: float, _offset: float) -> torch.Tensor:
    """The result's shape and dtype, as a tensor without values; the operands have none either."""
    check_together(x=x, weight=weight)
    check_dtype("x", x)
    check_dimensions(x)
    _check_weight(x, weight)
    return x.new_empty(x.shape)


def _planned(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float) -> Planned:
    return (x, weight), (eps, offset)


define("rms_norm(Tensor x, Tensor weight, float eps, float offset) -> Tensor", _run, _shaped)
plan_first("rms_norm", CALL_CACHE, _planned)
