"""The operations and the fewest bytes of device memory of a GEMM."""

from __future__ import annotations

import functools

from tuner.problem import dtype
from tuner.problem.generic_key import Extra

Shape = tuple[int, int, int]
Extras = tuple[tuple[str, Extra], ...]
_PRODUCTS = {"gated_linear": 2, "fused_experts": 3}
"""How many products of an op have as many operations as one of M, N and K: gate and up, of experts down too."""


def flops(op: str, shape: Shape, extras: Extras) -> int:
    """Return 2·M·N·K for each product; of experts (`tuner.moe.layer`), for all that one launch plays."""
    m, n, k = shape
    products = _PRODUCTS.get(op, 1) * _count(extras, "batch") * _count(extras, "top_k") * _count(extras, "draws")
    one = 2 * m * n * k * products
    # The second of both GEMMs has half the first one's operations: its K is half of the first one's N.
    return one * 3 // 2 if ("gemm", "both") in extras else one


@functools.lru_cache(maxsize=1024)
def bytes_moved(shape: Shape, dtypes: tuple[str, str, str], extras: Extras) -> int:
    """Return the bytes when A and B are read and the output is written once; `dtypes` are theirs, in this order."""
    m, n, k = shape
    batch, groups = _count(extras, "batch"), _count(extras, "groups")
    a, b, out = (dtype.ITEMSIZE[name] for name in dtypes)
    return (m * k * a + k * n * b * groups + m * n * out) * batch


def _count(extras: Extras, name: str) -> int:
    """Return a count from `extras`: "batch" is the number of products, "groups" that of the matrices B."""
    count = dict(extras).get(name, 1)
    return count if isinstance(count, int) else 1
