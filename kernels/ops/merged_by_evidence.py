"""The products of one input with two or three weights by `merged_linear`, in one launch, where tables say so.

`tuner.models.accelerate` makes attention call it. An eager call that the kernel does not serve is the caller's own.
torch.compile and torch.export see one operator, `triton_tuner::merged_by_evidence`, which chooses at each run; what the
kernel does not serve there is a product for each weight.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tuner.kernels.base.operands import is_aligned
from tuner.kernels.merged.operands import in_places, split
from tuner.kernels.ops import arguments, autocast, dispatch
from tuner.kernels.ops.left_to_torch import Asked, LeftToTorch, asked_of
from tuner.kernels.ops.linear import DTYPES, are_plain, linear, linear_preference
from tuner.kernels.ops.operators import Planned, define, operator, plan_first
from tuner.kernels.ops.problem import problem_of
from tuner.launch.call_cache import PLAIN_TENSORS, CallCache, is_tracing
from tuner.launch.torch_precision import precision_of
from tuner.lookup import evidence, lookup
from tuner.problem import Problem
from tuner.problem import dtype as dtypes
from tuner.problem.merged_parts import MOST_ROWS, PARTS, parts_text

CALL_CACHE = CallCache()
Tensors = Sequence[torch.Tensor]
"""The weights [N_i, K], or the biases [N_i] of all of them; no biases where they have none."""


@dataclass(frozen=True, eq=False, slots=True)
class MergedPreference:
    """Who serves the merged layers of one family.

    Attributes:
        is_auto: Whether the kernel serves only what a table says that it is no slower at.
        widths: The rows of each weight.
        has_bias: Whether each weight has a bias.
        options: The key of these calls among the plans, without whether results are flat (`_eager`).
        left_to_torch: What tables say torch is faster at, see `asked_of`.
    """

    is_auto: bool
    widths: tuple[int, ...]
    has_bias: bool
    options: tuple[bool, bool]
    left_to_torch: LeftToTorch[Asked] = field(default_factory=LeftToTorch)

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles of a block share the preference of their process."""
        return merged_preference, (self.is_auto, self.widths, self.has_bias)


@functools.cache
def merged_preference(is_auto: bool, widths: tuple[int, ...], has_bias: bool) -> MergedPreference:
    """The preference that all merged layers of these widths share in this process."""
    return MergedPreference(is_auto, widths, has_bias, (is_auto, has_bias))


def has_few_rows(x: torch.Tensor, most: int = MOST_ROWS) -> bool:
    """Whether x is a plain tensor of at most so many rows: by default as many as the kernel takes.

    It is none where torch.compile or torch.export does not know their number: a guard on it would be an error where a
    user has declared it dynamic.
    """
    if x.dim() < 2:
        return False
    if not is_tracing():
        return type(x) in PLAIN_TENSORS and x.numel() <= most * x.shape[-1]
    known: bool = torch.fx.experimental.symbolic_shapes.statically_known_true(x.numel() <= most * x.shape[-1])
    return known


def merged(
    x: torch.Tensor, weights: Tensors, biases: Tensors, preferred: MergedPreference
) -> tuple[torch.Tensor, ...] | None:
    """Compute x @ weight.T + bias for each weight, or None where the caller is to, in its own way.

    That is what tables say is slower, what needs a gradient, is cast by autocast or is transformed by torch.func, and
    what the kernel does not take.

    Args:
        x: [..., K], float32, float16 or bfloat16, which `has_few_rows`.
        weights: Two or three [N_i, K], of x's dtype.
        biases: As many [N_i], of x's dtype, or none.
        preferred: Who serves them.

    Raises:
        Exception: What a launch raises where no kernel could be launched.
    """
    if is_tracing():
        found = _traced(x, weights, biases, preferred)
    else:
        found = _eager(x, weights, biases, preferred, is_flat=False)
    if found is None:
        return None
    if found.dim() > 1:
        side_by_side: tuple[torch.Tensor, ...] = found.split_with_sizes(preferred.widths, -1)
        return side_by_side
    return split(found, x.shape[:-1], preferred.widths)


def _eager(
    x: torch.Tensor, weights: Tensors, biases: Tensors, preferred: MergedPreference, *, is_flat: bool
) -> torch.Tensor | None:
    """All products in one tensor, or None: in one dimension, one product after the other.

    For one row they are also side by side, [..., 1, N], if not `is_flat`: then one view is made of each, not two.
    """
    if torch.is_grad_enabled() and any(each.requires_grad for each in (x, *weights, *biases)):
        return None
    if preferred.left_to_torch and asked_of(x) in preferred.left_to_torch:
        return None
    # A plan serves only what needs neither a gradient nor autocast, and what nobody traces.
    found = CALL_CACHE.run((x, *weights, *biases), (*preferred.options, is_flat))
    if found is not None or arguments.is_followed() or not _is_served(x, weights, biases, preferred):
        return found
    return _launched(x, weights, biases, preferred, is_flat=is_flat)


def _traced(x: torch.Tensor, weights: Tensors, biases: Tensors, preferred: MergedPreference) -> torch.Tensor | None:
    """The operator, which chooses when it runs."""
    if not _is_taken(x, weights, biases):
        return None
    result: torch.Tensor = operator("merged_by_evidence")(x, [*weights], [*biases], preferred.is_auto)
    return result


def _is_taken(x: torch.Tensor, weights: Tensors, biases: Tensors) -> bool:
    """Whether the kernel computes what torch would; the caller's own way says what is wrong with other operands."""
    given = (x, *weights, *biases)
    if not are_plain(given) or x.dim() < 2 or x.dtype not in DTYPES or not x.shape[-1]:
        return False
    if any((each.dtype, each.device) != (x.dtype, x.device) for each in given):
        return False
    if any(each.dim() != 2 or each.shape[1] != x.shape[-1] for each in weights):
        return False
    if len(biases) not in (0, len(weights)):
        return False
    if any(bias.shape != weight.shape[:1] for bias, weight in zip(biases, weights, strict=False)):
        return False
    return not (autocast.is_on(x) or arguments.ask_derivatives(*given))


def _is_served(x: torch.Tensor, weights: Tensors, biases: Tensors, preferred: MergedPreference) -> bool:
    """Whether the kernel takes an eager call, and is to serve it."""
    if not (_is_taken(x, weights, biases) and has_few_rows(x) and all(each.numel() for each in (x, *weights))):
        return False
    # The kernel has one distance of rows for all weights, and all rows are contiguous.
    if x.stride(-1) != 1 or any(each.stride() != (weights[0].stride(0), 1) for each in weights):
        return False
    if any(each.stride(0) != 1 for each in biases):
        return False
    if not (arguments.has_kernels(x.device) and dispatch.is_supported(x.device.index)):
        return False
    sources = lookup.resolver()
    if not preferred.is_auto or _is_faster(sources, _rows(x), x.shape[-1], preferred, *asked_of(x)[1:]):
        return True
    preferred.left_to_torch.leave(asked_of(x), sources)
    return False


def _rows(x: torch.Tensor) -> int:
    return int(x.numel()) // int(x.shape[-1])


@functools.lru_cache(maxsize=8192)
def _is_faster(  # noqa: PLR0917
    _of: object, m: int, k: int, preferred: MergedPreference, dtype: torch.dtype, device: torch.device, precision: str
) -> bool:
    """Whether a table says that the kernel is no slower than torch; asked once for the tables that are named."""
    described = _problem(m, k, preferred.widths, preferred.has_bias, dtype, precision)
    return evidence.beats_vendor(described, dispatch.device_of(device.index))


lookup.on_change(_is_faster.cache_clear)


def problem(m: int, k: int, widths: Sequence[int], has_bias: bool, dtype: torch.dtype) -> Problem:
    """The problem of merged layers whose tensors are contiguous, as torch multiplies float32 now."""
    return _problem(m, k, widths, has_bias, dtype, precision_of(dtype))


def _problem(  # noqa: PLR0917
    m: int,
    k: int,
    widths: Sequence[int],
    has_bias: bool,
    dtype: torch.dtype,
    precision: str,
    *,
    aligned: bool | None = None,
) -> Problem:
    return Problem(
        *(m, sum(widths), k),
        dtype=dtypes.name_of(dtype),
        layout="nt",
        op="merged_linear",
        aligned=aligned,
        epilogue="bias" if has_bias else "none",
        precision=precision,
        extras={PARTS: parts_text(widths)},
    )


def _launched(
    x: torch.Tensor, weights: Tensors, biases: Tensors, preferred: MergedPreference, *, is_flat: bool
) -> torch.Tensor | None:
    """By the kernel, whose plan is stored."""
    m, precision = _rows(x), precision_of(x.dtype)
    try:
        flat = x.view(m, x.shape[-1])
    except RuntimeError:
        return None  # x would have to be copied
    columns = sum(preferred.widths)
    result = x.new_empty((m * columns,) if is_flat or m > 1 else (*x.shape[:-1], columns))
    sources = lookup.resolver()
    described = problem_of(_described, (flat, *weights, result), preferred.has_bias, precision)
    operands = in_places(flat, weights, biases, result.view(m, -1), described, result)
    recording = dispatch.launch(operands, described, x.device)
    kept = (x, *weights, *biases), (*preferred.options, is_flat), recording, result, sources
    CALL_CACHE.remember(*kept, precision=precision if x.dtype == torch.float32 else None)
    return result


def _described(x: torch.Tensor, *given: Any) -> Problem:
    """The problem of x, the weights, the result, whether there are biases, and the precision."""
    *weights, result, has_bias, precision = given
    (m, k), widths = x.shape, [len(each) for each in weights]
    aligned = is_aligned(x, *weights, result.view(m, -1))
    return _problem(m, k, widths, has_bias, x.dtype, precision, aligned=aligned)


def _run(x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor], is_auto: bool) -> torch.Tensor:
    """The operator's own call."""
    preferred = merged_preference(is_auto, tuple(len(each) for each in weights), bool(biases))
    found = None if type(x) not in PLAIN_TENSORS else _eager(x, weights, biases, preferred, is_flat=True)
    if found is not None:
        return found
    pairs = zip(weights, biases or [None] * len(weights), strict=True)
    products = [linear(x, each, bias, linear_preference(is_auto, *each.shape, bool(biases))) for each, bias in pairs]
    return torch.cat([each.flatten() for each in products])


def _planned(x: torch.Tensor, weights: list[torch.Tensor], biases: list[torch.Tensor], is_auto: bool) -> Planned:
    """By its preference's options, without the preference."""
    return (x, *weights, *biases), (is_auto, bool(biases), True)


def _shaped(x: torch.Tensor, weights: list[torch.Tensor], *_: object) -> torch.Tensor:
    """The result's shape and dtype, as a tensor without values; the operands have none either."""
    arguments.check_together(x=x, weight=weights[0])
    return x.new_empty((x.numel() // x.shape[-1] * sum(each.shape[0] for each in weights),))


def _count_flops(x: torch.Tensor, weights: list[torch.Tensor], *_: object, **__: object) -> int:
    return 2 * int(x.numel()) * sum(int(each.shape[0]) for each in weights)


_SIGNATURE = "merged_by_evidence(Tensor x, Tensor[] weights, Tensor[] biases, bool is_auto) -> Tensor"
define(_SIGNATURE, _run, _shaped, _count_flops)
plan_first("merged_by_evidence", CALL_CACHE, _planned)
