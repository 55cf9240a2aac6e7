"""Compares the outputs of kernels whose operation is unknown with what they should be.

docs/tuned.md gives the reasons for these tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.errors import KernelError

ROUNDINGS = 16
"""How many roundings of its dtype an element may be off, relative to its own size plus the root mean square of all."""
_PIECE = 1 << 26
_BITS = {"float64": 20, "float32": 11, "float16": 11, "bfloat16": 8}
"""Significant bits that count. For float32 they are those of TF32, in which `tl.dot` multiplies by default; for float64
those of a kernel that sums in float32."""
_FLOAT8 = {
    "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2fnuz": 2.0**-2,
}


def accepted(dtype: Any) -> float:
    """Return the largest error accepted for outputs of a dtype; 0 for integers and booleans."""
    name = str(dtype).removeprefix("torch.")
    if not dtype.is_floating_point:
        return 0.0
    return _FLOAT8.get(name, ROUNDINGS * 2.0 ** -significant_bits(dtype))


def significant_bits(dtype: Any) -> int:
    """Return how many bits of a float of more than 8 bits count: fewer than it has, where `tl.dot` rounds it."""
    return _BITS.get(str(dtype).removeprefix("torch."), 11)


def error_ratio(output: Any, expected: Any, tolerance: float | None = None) -> float:
    """Return an output's error as a share of the accepted error: above 1, the output is wrong.

    It is infinite where an element is NaN or infinite and should not be. Where no error is accepted, as of whole
    numbers, it is 1 more than the error.
    """
    import torch

    limit = accepted(output.dtype) if tolerance is None else tolerance
    if output.numel() == 0:
        return 0.0
    size = _root_mean_square(expected)
    worst = 0.0
    for part, other in zip(_parts(output), _parts(expected.to(output.device)), strict=True):
        got, want = part.double(), other.double()
        same = (got == want) | (torch.isnan(got) & torch.isnan(want))
        error = ((got - want).abs() / (want.abs() + size)).masked_fill(same, 0.0)
        worst = max(worst, float(error.nan_to_num(nan=math.inf, posinf=math.inf).max()))
    return worst / limit if limit else (1 + worst if worst else 0.0)


def _root_mean_square(tensor: Any) -> float:
    """Return the root mean square of the finite elements, 0 where none is finite."""
    import torch

    total, count = 0.0, 0
    for part in _parts(tensor):
        finite = part[torch.isfinite(part)].double()
        total, count = total + float(finite.square().sum()), count + finite.numel()
    return math.sqrt(total / count) if count else 0.0


def _parts(tensor: Any) -> Sequence[Any]:
    """Split a tensor into pieces small enough to convert to float64 beside everything else in memory."""
    pieces: Sequence[Any] = tensor.reshape(-1).split(_PIECE)
    return pieces


def poison(tensor: Any) -> None:
    """Fill a tensor with values that kernels do not write: NaN, or the largest integer."""
    import torch

    if tensor.dtype.is_floating_point and tensor.element_size() > 1:
        tensor.fill_(math.nan)
    elif tensor.dtype.is_floating_point:
        tensor.view(torch.uint8).fill_(0xFF)
    else:
        tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)


def by_name(op: str, expected: Any, outputs: Sequence[str]) -> dict[str, Any]:
    """Return by output name what a user's reference returned: one tensor, a tuple in order, or tensors by name.

    Raises:
        KernelError: it returned something else.
    """
    if isinstance(expected, Mapping):
        found = {name: expected[name] for name in outputs if name in expected}
    else:
        several = expected if isinstance(expected, (tuple, list)) else (expected,)
        found = dict(zip(outputs, several, strict=False)) if len(several) == len(outputs) else {}
    if len(found) != len(outputs) or not all(hasattr(tensor, "double") for tensor in found.values()):
        count = f" of {len(expected)}" if isinstance(expected, (tuple, list)) else ""
        raise KernelError(
            f"reference of {op} returned a {type(expected).__name__}{count}: expected {', '.join(outputs)}"
        )
    return found
