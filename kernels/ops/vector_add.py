"""The op `vector_add`: a repeated call runs its launch plan; any other is checked, looked up and launched.

torch.compile and torch.export see it as the operator `triton_tuner::vector_add`, unless it is given `out`.
"""

from __future__ import annotations

import functools
from typing import cast

import torch

from tuner.errors import InputError
from tuner.kernels.elementwise.spec import Tensors
from tuner.kernels.ops import autocast, operators
from tuner.kernels.ops.arguments import check_gradients, check_together, is_followed, shown
from tuner.kernels.ops.dispatch import launch
from tuner.kernels.ops.elementwise_arguments import check_alike, check_dtype, check_input, check_out
from tuner.kernels.ops.operators import Planned, define, plan_first
from tuner.launch.call_cache import CallCache, is_tracing, untraced
from tuner.lookup.lookup import resolver
from tuner.problem import Problem
from tuner.problem import dtype as dtypes
from tuner.problem.gemm_fields import MAX_SIZE

CALL_CACHE = CallCache()


def vector_add(x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Compute x + y of two vectors with a tuned Triton kernel, on x's device and current stream.

    The sum is computed in float32 and rounded once. The config comes from `tuner.lookup`; nothing is measured and
    nothing written. Vectors with more than 2^31 - 1 elements use the config for that length.

    Args:
        x: [M], float32, float16 or bfloat16, any stride.
        y: [M], of x's dtype, any stride; a single value is passed as `value.expand(M)`.
        out: [M] to write into, any stride without overlap; x or y itself too.

    Returns:
        `out`, or a new tensor [M].

    Raises:
        InputError: an argument is not a dense vector; lengths, dtypes or devices do not fit; or an operand requires a
            gradient.
        KernelError: no installed kernel serves the problem on this device.
    """
    found = CALL_CACHE.run_two(x, y, ()) if out is None else CALL_CACHE.run((x, y), (), out)
    if found is not None:
        return found
    if is_tracing() and out is not None:
        return cast(torch.Tensor, untraced(vector_add)(x, y, out=out))
    if out is None and autocast.is_on(x) and autocast.differ(x, y):
        return vector_add(*autocast.widened(x, y))
    if out is None and is_followed():
        return operators.call("vector_add", x=x, y=y)
    return _checked_call((out, x, y))


def _checked_call(given: tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Run a call whose arguments must be checked, and store its plan."""
    out, x, y = given
    x, y = check_input("x", x), check_input("y", y)
    _check_shapes(x, y)
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else check_out(out, x, y)
    check_gradients(x, y, out)
    if len(x):
        problem = _problem(len(x), x.dtype, all(_is_dense(tensor) for tensor in (x, y, out)))
        sources = resolver()
        recording = launch(Tensors(x, y, out, problem, out), problem, x.device)
        CALL_CACHE.remember(given[1:], (), recording, out, sources, out=given[0])
    return out


def _check_shapes(x: torch.Tensor, y: torch.Tensor) -> None:
    """Check that both are vectors of one length, dtype and device."""
    for name, vector in (("x", x), ("y", y)):
        if vector.dim() != 1:
            raise InputError(f"{name} has shape {shown(vector)}: expected [M]; use {name}.flatten()")
    if x.shape != y.shape:
        short, long = ("x", y) if len(x) == 1 else ("y", x)
        remedy = f"; one value for all goes in as {short}.expand({len(long)})" if 1 in (len(x), len(y)) else ""
        raise InputError(f"x {shown(x)} and y {shown(y)} do not fit: expected one length{remedy}")
    check_alike(x, y)


@functools.lru_cache(maxsize=8192)
def _problem(length: int, dtype: torch.dtype, aligned: bool) -> Problem:
    length = min(length, MAX_SIZE)
    return Problem(length, 1, 1, dtype=dtypes.name_of(dtype), aligned=aligned, op="vector_add")


def _is_dense(vector: torch.Tensor) -> bool:
    return vector.data_ptr() % 16 == 0 and (vector.stride(0) == 1 or len(vector) == 1)


def _shaped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The result's shape and dtype, as a tensor without values; the operands have none either."""
    check_together(x=x, y=y)
    check_dtype("x", x)
    _check_shapes(x, y)
    return x.new_empty(x.shape)


def _planned(x: torch.Tensor, y: torch.Tensor) -> Planned:
    return (x, y), ()


define("vector_add(Tensor x, Tensor y) -> Tensor", vector_add, _shaped)
plan_first("vector_add", CALL_CACHE, _planned)
