"""The least work that a problem is: operations, and bytes of memory; 0 where all is in a key and nobody knows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tuner import dtype as dtypes

if TYPE_CHECKING:
    from tuner.problem import Problem


def flops(problem: Problem) -> int:
    """2·M·N·K, of every product of a batch."""
    return 0 if problem.is_keyed else 2 * problem.m * problem.n * problem.k * _count(problem, "batch")


@functools.lru_cache(maxsize=1024)
def bytes_moved(problem: Problem) -> int:
    """A and B read once, the output written once."""
    if problem.is_keyed:
        return 0
    m, n, k = problem.shape
    batch, groups = _count(problem, "batch"), _count(problem, "groups")
    return (
        m * k * dtypes.ITEMSIZE[problem.a_dtype] * batch
        + k * n * dtypes.ITEMSIZE[problem.b_dtype] * batch * groups
        + m * n * dtypes.ITEMSIZE[problem.out_dtype] * batch
    )


def _count(problem: Problem, name: str) -> int:
    """What `extras` holds under a name: "batch" products of M x N x K, or M rows in "groups" with a B each."""
    count = dict(problem.extras).get(name, 1)
    return count if isinstance(count, int) else 1
