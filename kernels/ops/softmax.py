"""The op `softmax`: a call seen before runs its plan; any other is checked, looked up and launched."""

from __future__ import annotations

import math

import torch

from tuner.errors import InputError
from tuner.kernels.base.operands import is_aligned, placement
from tuner.kernels.elementwise.spec import Tensors
from tuner.kernels.ops.arguments import check_gradients
from tuner.kernels.ops.dispatch import flattened, launch
from tuner.kernels.ops.elementwise_arguments import check_input, check_out
from tuner.kernels.ops.problem import problem_of
from tuner.launch.call_cache import CallCache
from tuner.lookup.lookup import resolver
from tuner.problem import Problem, dtype
from tuner.problem.gemm_fields import MAX_SIZE

CALL_CACHE = CallCache()


def softmax(x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Softmax of every row, exp(x - max) / sum(exp(x - max)), by a tuned Triton kernel on x's device and stream.

    Computed in float32 and rounded once; the same bits each time. The config comes from `tuner.lookup`; nothing is
    measured and nothing written. A row of -inf alone, and one that holds NaN or +inf, becomes NaN.

    Args:
        x: [..., N], float32, float16 or bfloat16, any strides; leading dimensions are flattened into M (copied only
            where torch must). Along another dimension: `softmax(x.movedim(d, -1))`.
        out: [..., N] to write into, any strides without overlap; x itself too.

    Returns:
        `out`, or a new tensor [..., N].

    Raises:
        InputError: arguments that are no dense tensors, shapes, dtypes or devices that do not fit, or an operand that
            asks for a gradient.
        KernelError: no installed kernel serves the problem on this device.
    """
    found = CALL_CACHE.run_one(x, ()) if out is None else CALL_CACHE.run((x,), (), out)
    return _checked_call(x, out) if found is None else found


def _checked_call(given: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """A call whose every argument is looked at; its plan is kept."""
    x = check_input("x", given)
    if x.dim() == 0:
        raise InputError("x has shape []: expected [..., N]; use x.reshape(1)")
    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else check_out(out, x)
    check_gradients(x, out)
    if x.numel() == 0:
        return result
    rows = math.prod(x.shape[:-1])
    matrix = x.reshape(rows, x.shape[-1])
    # An output whose leading dimensions cannot be flattened in place is filled by a copy below.
    flat = flattened(result, rows)
    problem = problem_of(_problem, (matrix, flat))
    sources = resolver()
    seen = launch(Tensors(matrix, None, flat, problem, flat), problem, x.device)
    if flat.data_ptr() == result.data_ptr():
        CALL_CACHE.remember((given,), (), seen, result, sources, out=out)
    else:
        result.copy_(flat.view(x.shape))
    return result


def _problem(matrix: torch.Tensor, out: torch.Tensor) -> Problem:
    rows, columns = matrix.shape
    return Problem(
        min(rows, MAX_SIZE),
        columns,
        1,
        dtype=dtype.name_of(matrix.dtype),
        layout="tn" if placement(matrix).transposed else "nn",
        # A transposed output is written element by element, whatever its address.
        aligned=is_aligned(matrix, out) and out.stride(1) == 1,
        op="softmax",
    )
