"""Right or wrong, for kernels of which nobody knows what they compute: every output against what it should be.

docs/tuned.md says why these tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.errors import KernelError

ROUNDINGS = 16
"""Roundings of its dtype that an element may be off, of its own size and the root mean square of all together."""
_PIECE = 1 << 26
_BITS = {"float64": 20, "float32": 11, "float16": 11, "bfloat16": 8}
"""Significant bits that count: of float32 those of TF32, in which `tl.dot` multiplies unless told otherwise; of float64
those of a kernel that sums in float32."""
_OF_8_BITS = {"float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2, "float8_e4m3fnuz": 2.0**-3, "float8_e5m2fnuz": 2.0**-2}


def accepted(dtype: Any) -> float:
    """The largest error of a right output of a dtype; 0 for whole numbers and truth values."""
    name = str(dtype).removeprefix("torch.")
    if not dtype.is_floating_point:
        return 0.0
    return _OF_8_BITS.get(name, ROUNDINGS * 2.0 ** -_BITS.get(name, 11))


def error_ratio(output: Any, expected: Any, tolerance: float | None = None) -> float:
    """The error of an output as a share of what is accepted: above 1 it is wrong.

    Args:
        output: what a launch wrote.
        expected: of its shape; any dtype.
        tolerance: the largest error accepted; by the output's dtype unless given.
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
    return worst / limit if limit else (math.inf if worst else 0.0)


def _root_mean_square(tensor: Any) -> float:
    """Over the elements that are finite, 0 where none is."""
    import torch

    total, count = 0.0, 0
    for part in _parts(tensor):
        finite = part[torch.isfinite(part)].double()
        total, count = total + float(finite.square().sum()), count + finite.numel()
    return math.sqrt(total / count) if count else 0.0


def _parts(tensor: Any) -> Sequence[Any]:
    """Pieces small enough to be had in float64 beside everything else."""
    pieces: Sequence[Any] = tensor.reshape(-1).split(_PIECE)
    return pieces


def poison(tensor: Any) -> None:
    """Fill a tensor with what no kernel writes: NaN, or all bits set."""
    import torch

    if tensor.dtype.is_floating_point and tensor.element_size() > 1:
        tensor.fill_(math.nan)
    elif tensor.dtype.is_floating_point:
        tensor.view(torch.uint8).fill_(0xFF)
    else:
        tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)


def by_name(op: str, expected: Any, outputs: Sequence[str]) -> dict[str, Any]:
    """What a user's reference returned, by output: a tensor for one, a tuple in their order, or tensors by name.

    Raises:
        KernelError: it is none of these.
    """
    if isinstance(expected, Mapping):
        found = {name: expected[name] for name in outputs if name in expected}
    else:
        several = expected if isinstance(expected, (tuple, list)) else (expected,)
        found = dict(zip(outputs, several, strict=False)) if len(several) == len(outputs) else {}
    if len(found) != len(outputs) or not all(hasattr(tensor, "double") for tensor in found.values()):
        raise KernelError(f"reference of {op} returned a {type(expected).__name__}: expected {', '.join(outputs)}")
    return found
