"""The problem that an op's tensors stand for, cached by everything on which it depends."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from tuner.bounded import make_room
from tuner.errors import InputError
from tuner.problem import Problem
from tuner.problem import dtype as dtypes
from tuner.problem.gemm_fields import MAX_SIZE

_MOST = 8192
_problems: dict[Hashable, Problem] = {}
_SPLITTING = {
    "M": "call it for some of a's rows at a time (leading dimensions count as rows)",
    "N": "call it for some of b's columns at a time",
    "K": "add up the products of parts, a[..., :k] with b[..., :k, :] and so on",
}


def problem_of(
    make: Callable[..., Problem], tensors: tuple[torch.Tensor, ...], *options: Hashable, m: int | None = None
) -> Problem:
    """`make(*tensors, *options)`, cached; it may depend only on shapes, strides, dtypes and 16-byte alignment.

    Give `m` where the tensors' first sizes say no more than M, so that one problem is made for every M.
    """
    first = 0 if m is None else 1
    kinds = [(t.shape[first:], t.stride(), t.dtype, t.data_ptr() % 16 == 0) for t in tensors]
    key = (make, options, first, *kinds)
    problem = _problems.get(key)
    if problem is None:
        problem = make(*tensors, *options)
        make_room(_problems, _MOST)
        _problems[key] = problem
    return problem if m is None or m == problem.m else problem.with_m(m)


def check_sizes(shape: tuple[int, int, int], remedies: Mapping[str, str], most_n: int = MAX_SIZE) -> None:
    """Check that the sizes of products fit into 32 bits.

    Args:
        shape: M, N and K.
        remedies: By "M", "N" and "K", how a call is split in which that size is too large.
        most_n: The most of N; half of it where gate and up together have twice as many columns.

    Raises:
        InputError: a size does not fit.
    """
    for name, size, most in zip("MNK", shape, (MAX_SIZE, most_n, MAX_SIZE), strict=True):
        if size > most:
            raise InputError(f"{name} is {size}: expected at most {most}; {remedies[name]}")


def product(
    shape: tuple[int, int, int],
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    transposed: tuple[bool, bool],
    **fields: Any,
) -> Problem:
    """The problem of an op whose products are GEMMs.

    Args:
        shape: M, N and K.
        tensors: A, B and the output, which give the dtypes.
        transposed: Whether A and B are stored column by column.
        fields: All other fields of `Problem`.

    Raises:
        InputError: a size does not fit into 32 bits.
    """
    check_sizes(shape, _SPLITTING)
    a, b, out = (dtypes.name_of(tensor.dtype) for tensor in tensors)
    layout = "".join("t" if each else "n" for each in transposed)
    return Problem(*shape, a_dtype=a, b_dtype=b, out_dtype=out, layout=layout, **fields)
