"""The op `gated_linear`: a repeated call runs its launch plan; any other is checked, looked up and launched.

torch.compile and torch.export see it as operators `triton_tuner::gated_linear` and `triton_tuner::gated_linear_out`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch

from tuner.errors import InputError
from tuner.kernels.base.operands import is_aligned
from tuner.kernels.gated.operands import GatedOperands
from tuner.kernels.ops import arguments, autocast
from tuner.kernels.ops.arguments import shown
from tuner.kernels.ops.dispatch import flattened, launch
from tuner.kernels.ops.elementwise_arguments import check_alike, check_dtype, check_input
from tuner.kernels.ops.operators import Planned, define, operator, plan_first
from tuner.kernels.ops.problem import check_sizes, problem_of
from tuner.launch.call_cache import CallCache, any_m, is_tracing
from tuner.lookup.lookup import resolver
from tuner.problem import Problem
from tuner.problem import dtype as dtypes
from tuner.problem.gemm_fields import MAX_SIZE

CALL_CACHE = CallCache()
_SPLITTING = {
    "M": "call it for some of x's rows at a time (leading dimensions count as rows)",
    "N": "call it for some rows of both weights at a time",
    "K": "use torch's own ops",
}


class _Tensors(NamedTuple):
    """The tensors of a call."""

    x: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor


def gated_linear(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    activation: str | None = "silu",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute activation(x @ gate.T) * (x @ up.T) with a tuned Triton kernel on x's current stream, in one launch.

    It is the first half of a gated MLP (SwiGLU; source: Shazeer, arXiv:2002.05202). Sums, activation and product are
    float32 and rounded once. The config comes from `tuner.lookup`; nothing is measured and nothing written. Sizes of 0
    give what torch gives. Under torch.autocast the operands are cast like those of torch.nn.functional.linear
    (docs/ops.md).

    Args:
        x: [..., M, K], float32, float16 or bfloat16; leading dimensions are flattened into M. It is copied where its
            rows are not contiguous, or where torch cannot flatten it in place.
        gate, up: [N, K], of x's dtype, contiguous rows, with one row stride for both.
        activation: silu, gelu (tanh form), relu, leaky_relu (slope 0.01); None or "none" for none.
        out: [..., M, N] to write into, contiguous rows, apart from all operands.

    Returns:
        `out`, or a new tensor [..., M, N].

    Raises:
        InputError: an argument is not a dense tensor; shapes, strides, dtypes or devices do not fit; or an operand
            requires a gradient.
        KernelError: no installed kernel serves the problem on this device.
    """
    found = CALL_CACHE.run((x, gate, up), (activation,), out)
    if found is not None:
        return found
    if autocast.is_on(x):
        given = _Tensors(x, gate, up) if out is not None else autocast.lowered(x, gate, up)
        with autocast.off(x):
            return gated_linear(*given, activation=activation, out=out)
    if arguments.needs_operator(x, gate, up, out):
        return _by_operator(_Tensors(x, gate, up), activation, out)
    return checked_call(x, gate, up, activation, out, cache=CALL_CACHE, options=(activation,))


def checked_call(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    activation: str | None,
    out: torch.Tensor | None = None,
    *,
    cache: CallCache,
    options: tuple[Hashable, ...],
    serves_rows: Callable[[int], bool] | None = any_m,
) -> torch.Tensor:
    """Run a call whose arguments must be checked, and store its plan under some options.

    Of `serves_rows` see `CallCache.remember`, of all else `gated_linear`.
    """
    given = _Tensors(x, gate, up)
    read = _Tensors(*(check_input(name, tensor) for name, tensor in given._asdict().items()))
    _check_shapes(read)
    _check_rows(read)
    kind = arguments.activation_of(activation)
    shape = (*x.shape[:-1], len(gate))
    result = torch.empty(shape, dtype=x.dtype, device=x.device) if out is None else _check_out(out, shape, read)
    arguments.check_gradients(*given, out)
    if not x.shape[-1]:
        return result.zero_()
    if result.numel():
        rows = math.prod(shape[:-1])
        # If the output's leading dimensions cannot be flattened in place, a copy below fills it.
        flat = flattened(result, rows)
        sources = resolver()
        operands = _operands(read._replace(x=_with_rows(read.x, rows)), flat, kind)
        recording = launch(operands, operands.problem, x.device)
        if flat.data_ptr() == result.data_ptr():
            float32_setting = operands.problem.precision if x.dtype == torch.float32 else None
            kept = given, options, recording, result, sources
            cache.remember(*kept, out=out, precision=float32_setting, serves_rows=serves_rows)
        else:
            result.copy_(flat.view(shape))
    return result


def _with_rows(x: torch.Tensor, rows: int) -> torch.Tensor:
    """X as a matrix whose rows are contiguous, copied where it must be."""
    matrix = x.reshape(rows, x.shape[-1])
    return matrix.contiguous() if matrix.shape[1] > 1 and matrix.stride(1) != 1 else matrix


def _operands(given: _Tensors, out: torch.Tensor, activation: str) -> GatedOperands:
    x, gate, up, out = (_by_rows(each) for each in (*given, out))
    # Their number decides M alone, unless there is but one row.
    m = len(x) if len(x) > 1 else None
    problem = problem_of(_problem, (x, gate, up, out), activation, arguments.precision_of(x, None), m=m)
    return GatedOperands(x, gate, up, out, problem, out)


def _by_rows(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix, of which a dimension of one element has the stride that it has in a contiguous one."""
    rows, columns = matrix.shape
    strides = columns if rows == 1 else matrix.stride(0), 1
    return matrix if matrix.stride() == strides else matrix.as_strided((rows, columns), strides)


def _problem(  # noqa: PLR0917
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, activation: str, precision: str
) -> Problem:
    return Problem(
        *(len(x), len(gate), x.shape[1]),
        dtype=dtypes.name_of(x.dtype),
        layout="nt",
        aligned=is_aligned(x, gate, up, out),
        epilogue=activation,
        precision=precision,
        op="gated_linear",
    )


def _check_shapes(given: _Tensors) -> None:
    """Check that shapes, dtypes and devices fit each other."""
    x, gate, up = given
    if x.dim() < 2:
        remedy = "use gated_linear(x.unsqueeze(0), ...).squeeze(0)" if x.dim() else "use x.reshape(1, 1)"
        raise InputError(f"x has shape {shown(x)}: expected [..., M, K]; {remedy}")
    if gate.dim() != 2 or gate.shape != up.shape or x.shape[-1] != gate.shape[1]:
        raise InputError(
            f"x {shown(x)}, gate {shown(gate)} and up {shown(up)} do not fit: expected [..., M, K], [N, K] and [N, K]; "
            "a weight stored [K, N] goes in as weight.t().contiguous()"
        )
    for name, weight in (("gate", gate), ("up", up)):
        check_alike(x, weight, name)


def _check_rows(given: _Tensors) -> None:
    """Check that sizes fit into 32 bits, and both weights' rows are contiguous and as far apart in one as the other."""
    x, gate, up = given
    check_sizes((math.prod(x.shape[:-1]), len(gate), x.shape[-1]), _SPLITTING, MAX_SIZE // 2)
    if not gate.numel():
        return
    for name, weight in (("gate", gate), ("up", up)):
        if weight.stride(1) != 1 and weight.shape[1] > 1:
            raise InputError(f"{name}'s rows are not contiguous: use {name}.contiguous()")
    if len(gate) > 1 and gate.stride(0) != up.stride(0):
        raise InputError(
            f"gate's rows are {gate.stride(0)} elements apart and up's {up.stride(0)}: expected one distance; "
            "use gate.contiguous() and up.contiguous()"
        )


def _check_out(out: torch.Tensor, shape: tuple[int, ...], operands: _Tensors) -> torch.Tensor:
    arguments.check_tensors(out=out)
    arguments.check_memory(out=out)
    arguments.check_out(out, shape, operands, "x")
    if out.dtype != operands.x.dtype:
        expected = dtypes.name_of(operands.x.dtype)
        raise InputError(f"out is {dtypes.name_of(out.dtype)}: expected {expected}, as x is")
    if out.numel() and out.stride(-1) != 1 and out.shape[-1] > 1:
        raise InputError("out's rows are not contiguous: leave out= away")
    return out


def _by_operator(given: _Tensors, activation: str | None, out: torch.Tensor | None) -> torch.Tensor:
    """Compute it while torch traces or transforms it."""
    arguments.check_tensors(**given._asdict(), out=out)
    name = arguments.activation_of(activation)
    if not is_tracing():
        # The operators' shapes are worked out on tensors that are all on meta: only here the devices are known.
        _check_shapes(given)
        arguments.check_device("x", given.x)
    arguments.check_gradients(*given, out)
    if out is None:
        result: torch.Tensor = operator("gated_linear")(*given, name)
        return result
    operator("gated_linear_out")(*given, out, name)
    return out


def _run(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    return gated_linear(x, gate, up, activation=activation)


def _planned(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str) -> Planned:
    return (x, gate, up), (activation,)


def _run_out(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, activation: str) -> None:
    gated_linear(x, gate, up, activation=activation, out=out)


def _shaped(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, _activation: str) -> torch.Tensor:
    """The result's shape and dtype, as a tensor without values; the operands have none either."""
    arguments.check_together(x=x, gate=gate, up=up)
    check_dtype("x", x)
    _check_shapes(_Tensors(x, gate, up))
    return x.new_empty((*x.shape[:-1], gate.shape[0]))


def _shaped_out(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor, *_: Any) -> None:
    arguments.check_together(x=x, gate=gate, up=up, out=out)


def _count_flops(x: torch.Tensor, gate: torch.Tensor, *_: object, **__: object) -> int:
    return 4 * int(x.numel()) * int(gate.shape[0])


_GIVEN = "Tensor x, Tensor gate, Tensor up"
define(f"gated_linear({_GIVEN}, str activation) -> Tensor", _run, _shaped, _count_flops)
define(f"gated_linear_out({_GIVEN}, Tensor(a!) out, str activation) -> ()", _run_out, _shaped_out, _count_flops)
plan_first("gated_linear", CALL_CACHE, _planned)
