"""The least work that a GEMM is: operations, and bytes of device memory."""

from __future__ import annotations

import functools

from tuner.problem import dtype
from tuner.problem.generic_key import Extra

Shape = tuple[int, int, int]
Extras = tuple[tuple[str, Extra], ...]


def flops(shape: Shape, extras: Extras) -> int:
    """2·M·N·K, of every product of a batch."""
    m, n, k = shape
    return 2 * m * n * k * _count(extras, "batch")


@functools.lru_cache(maxsize=1024)
def bytes_moved(shape: Shape, dtypes: tuple[str, str, str], extras: Extras) -> int:
    """A and B read once, the output written once; `dtypes` are those of A, B and the output."""
    m, n, k = shape
    batch, groups = _count(extras, "batch"), _count(extras, "groups")
    a, b, out = (dtype.ITEMSIZE[name] for name in dtypes)
    return (m * k * a + k * n * b * groups + m * n * out) * batch


def _count(extras: Extras, name: str) -> int:
    """What `extras` holds under a name: "batch" products of M x N x K, or M rows in "groups" with a B each."""
    count = dict(extras).get(name, 1)
    return count if isinstance(count, int) else 1
