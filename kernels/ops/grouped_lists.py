"""`grouped_mm` of two lists of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tuner.errors import InputError
from tuner.kernels.base.operands import is_aligned
from tuner.kernels.base.sharing import first_shared
from tuner.kernels.grouped.operands import ListedOperands
from tuner.kernels.grouped.table import stored
from tuner.kernels.ops import arguments
from tuner.kernels.ops.dispatch import epilogue_of, fill_without_products, launch
from tuner.kernels.ops.problem import product
from tuner.problem import Problem
from tuner.problem.dtype import name_of
from tuner.problem.gemm_fields import MAX_SIZE


def listed_mm(
    a: Sequence[torch.Tensor],
    b: object,
    *,
    activation: str | None,
    out: object,
    out_dtype: torch.dtype | str | None,
    precision: str | None,
) -> list[torch.Tensor]:
    """Compute activation(a[i] @ b[i]) for every i, see `grouped_mm`.

    Raises:
        InputError: the lists differ in length, matrices do not fit each other or the list's first, or results share
            memory.
    """
    b, given = _list_of("b", b, len(a)), None if out is None else _list_of("out", out, len(a))
    if not a:
        return []
    pairs = [_resolved(index, *pair) for index, pair in enumerate(zip(a, b, strict=True))]
    _check_given(given or [])
    first = pairs[0][0]
    precision, activation = arguments.precision_of(first, precision), arguments.activation_of(activation)
    dtype = arguments.out_dtype_of(first, None if given is None else given[0], out_dtype)
    arguments.check_epilogue(dtype, None, activation)
    for index, (one, other) in enumerate(pairs):
        if (one.dtype, other.dtype, one.device) != (first.dtype, pairs[0][1].dtype, first.device):
            raise InputError(
                f"a[{index}] and b[{index}] are not of the dtypes and the device of a[0] and b[0]: expected one kind; "
                "call it once for each"
            )
        arguments.check_gradients(one, other)
    if given is None:
        results = [torch.empty(one.shape[0], other.shape[1], dtype=dtype, device=first.device) for one, other in pairs]
    else:
        results = given
        for index, (result, (one, other)) in enumerate(zip(results, pairs, strict=True)):
            if result.dtype != dtype:
                found, expected = name_of(result.dtype), name_of(dtype)
                raise InputError(f"out[{index}] is {found} and out[0] {expected}: expected one dtype; leave out= away")
            arguments.check_out(
                result, (one.shape[0], other.shape[1]), tuple(matrix for pair in pairs for matrix in pair)
            )
            arguments.check_gradients(result)
        if (shared := first_shared(results)) is not None:
            one, other = shared
            raise InputError(f"out[{one}] and out[{other}] share memory: expected its own for each; leave out= away")
    _multiply(pairs, results, activation, precision)
    return results


def _multiply(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], results: Sequence[torch.Tensor], activation: str, precision: str
) -> None:
    """Write the results, those of no products (a K of 0) by torch."""
    products = []
    for (one, other), result in zip(pairs, results, strict=True):
        if one.shape[1]:
            products.append((one, other, result))
        else:
            fill_without_products(result, None, activation)
    if any(result.numel() for *_, result in products):
        ones, others, written = zip(*products, strict=True)
        problem = _problem(ones, others, written, epilogue_of(has_bias=False, activation=activation), precision)
        launch(ListedOperands(ones, others, written, problem, written[0], written[0]), problem, written[0].device)


def _problem(
    a: Sequence[torch.Tensor],
    b: Sequence[torch.Tensor],
    out: Sequence[torch.Tensor],
    epilogue: str,
    precision: str,
) -> Problem:
    """The problem that stands for a list: M is the sum of all rows, N and K are the largest."""
    filled = [matrix for matrix in (*a, *b, *out) if matrix.numel()]
    n, k = (max(1, *(matrix.shape[1] for matrix in matrices)) for matrices in (b, a))
    rows = [matrix.shape[0] for matrix in a]
    return product(
        (max(1, *rows, min(sum(rows), MAX_SIZE)), n, k),
        (a[0], b[0], out[0]),
        (stored(a)[0] == "t", stored(b)[0] == "t"),
        # Matrices without elements may have sizes of which no problem can be aligned.
        aligned=None if is_aligned(*filled) and stored(out)[0] == "n" else False,
        epilogue=epilogue,
        precision=precision,
        op="grouped_mm",
        extras={"groups": len(a), "listed": True},
    )


def _list_of(name: str, value: object, length: int) -> list[torch.Tensor]:
    if not isinstance(value, (list, tuple)):
        remedy = f"use list({name})" if isinstance(value, torch.Tensor) and value.dim() == 3 else f"use [{name}]"
        raise InputError(
            f"{name} is of type {type(value).__name__} and a a list: expected a list of {length} matrices; {remedy}"
        )
    if len(value) != length:
        raise InputError(f"{name} has {len(value)} matrices and a {length}: expected as many")
    return list(value)


def _resolved(index: int, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    try:
        arguments.check_tensors(a=a, b=b)
        arguments.check_memory(a=a, b=b)
        a, b = arguments.in_memory(a=a, b=b)
        for name, matrix, expected, vector in (("a", a, "[M, K]", 0), ("b", b, "[K, N]", 1)):
            if matrix.dim() != 2:
                remedy = f"use {name}.unsqueeze({vector})" if matrix.dim() == 1 else f"give each of {name}.unbind()"
                raise InputError(f"{name} has shape {list(matrix.shape)}: expected {expected}; {remedy}")
        arguments.check_operands(a, b, None)
    except InputError as e:
        raise InputError(f"pair {index}: {e}") from None
    return a, b


def _check_given(results: Sequence[object]) -> None:
    for index, result in enumerate(results):
        if result is None:
            raise InputError(f"out[{index}] is None: expected a torch.Tensor; leave out= away")
        try:
            arguments.check_tensors(out=result)
            arguments.check_memory(out=result)
        except InputError as e:
            raise InputError(f"pair {index}: {e}") from None
