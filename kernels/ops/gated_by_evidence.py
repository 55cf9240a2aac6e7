"""The first half of a gated MLP by `gated_linear` where tables say that it is no slower, for `tuner.models.accelerate`.

An eager call that the kernels do not serve is the caller's own. torch.compile and torch.export see one operator,
`triton_tuner::gated_by_evidence`, which chooses at each run; what the kernels do not serve there is a product for each
weight, the activation, and the product of both.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from tuner.kernels.base.activations import activated
from tuner.kernels.ops import arguments, autocast, dispatch, gated_linear
from tuner.kernels.ops.left_to_torch import Asked, LeftToTorch, asked_of
from tuner.kernels.ops.linear import DTYPES, are_plain, linear, linear_preference
from tuner.kernels.ops.operators import Planned, define, operator, plan_first
from tuner.launch.call_cache import PLAIN_TENSORS, CallCache, is_tracing
from tuner.launch.torch_precision import precision_of
from tuner.lookup import evidence, lookup
from tuner.problem import Problem
from tuner.problem import dtype as dtypes
from tuner.problem.gemm_fields import MAX_SIZE

CALL_CACHE = CallCache()

Weights = tuple[torch.Tensor] | tuple[torch.Tensor, torch.Tensor]
"""The weights of gate and of up [N, K], or one [2N, K] with the rows of both."""


@dataclass(frozen=True, eq=False, slots=True)
class GatedPreference:
    """Who serves the gated layers of one family.

    Attributes:
        activation: The gate's activation, by `gated_linear`'s name.
        is_auto: Whether the kernels serve only what a table says that they are no slower at.
        up_first: Whether a weight of both has the rows of up first.
        shape: N and K.
        options: The key of these calls among the plans.
        left_to_torch: What tables say torch is faster at, see `asked_of`.
    """

    activation: str
    is_auto: bool
    up_first: bool
    shape: tuple[int, int]
    options: tuple[str, bool]
    left_to_torch: LeftToTorch[Asked] = field(default_factory=LeftToTorch)

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles of a block share the preference of their process."""
        return gated_preference, (self.activation, self.is_auto, self.up_first, self.shape)


@functools.cache
def gated_preference(activation: str, is_auto: bool, up_first: bool, shape: tuple[int, int]) -> GatedPreference:
    """The preference that all gated layers [N, K] of this process share."""
    return GatedPreference(activation, is_auto, up_first, shape, (activation, is_auto))


def gated(x: torch.Tensor, weights: Weights, preferred: GatedPreference) -> torch.Tensor | None:
    """Compute activation(x @ gate.T) * (x @ up.T), or None where the caller is to, in its own way.

    That is what tables say is slower, what needs a gradient, is cast by autocast or is transformed by torch.func, and
    what the kernels do not take.

    Raises:
        Exception: What `gated_linear` raises where no kernel could be launched.
    """
    if is_tracing():
        return _traced(x, weights, preferred)
    if type(x) not in PLAIN_TENSORS or type(weights[0]) not in PLAIN_TENSORS:
        return _traced(x, weights, preferred) if arguments.is_followed() else None
    if _is_callers(x, weights[0], preferred):
        return None
    gate, up = _halves(weights, preferred.up_first)
    # A plan serves only what needs neither a gradient nor autocast, and what nobody traces.
    found = CALL_CACHE.run((x, gate, up), preferred.options)
    if found is not None:
        return found
    if arguments.is_followed():
        return _traced(x, weights, preferred)
    return _launched(x, gate, up, preferred) if _is_served(x, gate, up, preferred) else None


def _is_callers(x: torch.Tensor, weight: torch.Tensor, preferred: GatedPreference) -> bool:
    """Whether a look at the first weight and at earlier calls says that the kernels do not serve a call."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return True
    if preferred.left_to_torch and asked_of(x) in preferred.left_to_torch:
        return True
    return bool(weight.dim() != 2 or weight.shape[0] < 2)


def _kind(dtype: torch.dtype) -> tuple[torch.dtype, str]:
    """A dtype, and how it is multiplied now."""
    return dtype, precision_of(dtype)


def _halves(weights: Weights, up_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of gate and of up."""
    if len(weights) == 2:
        return weights
    first, second = weights[0].chunk(2)
    return (second, first) if up_first else (first, second)


def _traced(x: torch.Tensor, weights: Weights, preferred: GatedPreference) -> torch.Tensor | None:
    """The operator, which chooses when it runs."""
    if not (are_plain((x, *weights)) and _fit(x, weights)) or _is_followed(x, weights):
        return None
    given = [*weights], preferred.up_first, preferred.activation, preferred.is_auto
    result: torch.Tensor = operator("gated_by_evidence")(x, *given)
    return result


def _fit(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> bool:
    """Whether shapes, dtypes and devices fit; the caller's own way says what is wrong with others."""
    if x.dim() < 2 or x.dtype not in DTYPES:
        return False
    first = weights[0]
    kinds = (each.dtype == x.dtype and each.device == x.device and each.shape == first.shape for each in weights)
    return all(kinds) and first.dim() == 2 and first.shape[1] == x.shape[-1]


def _is_followed(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> bool:
    """Whether operands need torch's own operators: for a gradient, or for autocast."""
    return autocast.is_on(x) or arguments.ask_derivatives(x, *weights)


def _is_served(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, preferred: GatedPreference) -> bool:
    """Whether the kernels take an eager call, and are to serve it."""
    weights = gate, up
    if not (are_plain((x, *weights)) and _fit(x, weights)) or _is_followed(x, weights):
        return False
    (n, k), rows = gate.shape, x.numel() // max(x.shape[-1], 1)
    # The op would copy a weight whose rows are apart, at each call.
    if not (rows and n and k) or any(each.stride(1) != 1 or each.stride(0) != gate.stride(0) for each in weights):
        return False
    if not (arguments.has_kernels(x.device) and dispatch.is_supported(x.device.index) and max(rows, 2 * n) <= MAX_SIZE):
        return False
    sources = lookup.resolver()
    if not preferred.is_auto or _is_faster(
        sources, (rows, n, k), *_kind(x.dtype), preferred.activation, x.device.index
    ):
        return True
    preferred.left_to_torch.leave(asked_of(x), sources)
    return False


def _launched(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, preferred: GatedPreference) -> torch.Tensor:
    """By a kernel, whose plan is stored; where others may be slower, tables are asked of each number of rows."""
    (n, k), dtype, index = gate.shape, x.dtype, x.device.index

    def serves_rows(rows: int) -> bool:
        sources = lookup.resolver()
        return not preferred.is_auto or _is_faster(sources, (rows, n, k), *_kind(dtype), preferred.activation, index)

    kept = functools.partial(gated_linear.checked_call, cache=CALL_CACHE, options=preferred.options)
    return kept(x, gate, up, preferred.activation, serves_rows=serves_rows)


@functools.lru_cache(maxsize=8192)
def _is_faster(
    _of: object, sizes: tuple[int, int, int], dtype: torch.dtype, precision: str, activation: str, index: int | None
) -> bool:
    """Whether a table says that the kernels are no slower than torch; asked once for the tables that are named."""
    return evidence.beats_vendor(_problem(sizes, dtype, precision, activation), dispatch.device_of(index))


lookup.on_change(_is_faster.cache_clear)


def problem(sizes: tuple[int, int, int], dtype: torch.dtype, activation: str) -> Problem:
    """The problem of gated layers whose tensors are contiguous, by M, N and K, as torch multiplies float32 now."""
    return _problem(sizes, *_kind(dtype), activation)


def _problem(sizes: tuple[int, int, int], dtype: torch.dtype, precision: str, activation: str) -> Problem:
    name = dtypes.name_of(dtype)
    return Problem(*sizes, dtype=name, layout="nt", op="gated_linear", epilogue=activation, precision=precision)


def _run(x: torch.Tensor, weights: list[torch.Tensor], up_first: bool, activation: str, is_auto: bool) -> torch.Tensor:
    """The operator's own call."""
    given = tuple(weights)
    n = given[0].shape[0] // (3 - len(given))
    preferred = gated_preference(activation, is_auto, up_first, (n, given[0].shape[1]))
    found = gated(x, given, preferred)
    return _by_products(x, given, preferred) if found is None else found


def _planned(
    x: torch.Tensor, weights: list[torch.Tensor], up_first: bool, activation: str, is_auto: bool
) -> Planned | None:
    """By its preference's options, without the preference."""
    if len(weights) == 2:
        return (x, *weights), (activation, is_auto)
    if type(x) not in PLAIN_TENSORS or type(weights[0]) not in PLAIN_TENSORS:
        return None
    return (x, *_halves((weights[0],), up_first)), (activation, is_auto)


def _by_products(x: torch.Tensor, weights: Weights, preferred: GatedPreference) -> torch.Tensor:
    """By a product for each weight, which tables choose too, and by torch's activation."""
    is_auto = preferred.is_auto
    products = [linear(x, each, None, linear_preference(is_auto, *each.shape, False)) for each in weights]
    gate, up = products if len(products) > 1 else products[0].chunk(2, dim=-1)[:: -1 if preferred.up_first else 1]
    return activated(gate, preferred.activation).mul_(up)


def _shaped(x: torch.Tensor, weights: list[torch.Tensor], *_: object) -> torch.Tensor:
    """The result's shape and dtype, as a tensor without values; the operands have none either."""
    arguments.check_together(x=x, weight=weights[0])
    return x.new_empty((*x.shape[:-1], weights[0].shape[0] // (3 - len(weights))))


def _count_flops(x: torch.Tensor, weights: list[torch.Tensor], *_: object, **__: object) -> int:
    return 2 * int(x.numel()) * sum(int(each.shape[0]) for each in weights)


_SIGNATURE = "gated_by_evidence(Tensor x, Tensor[] weights, bool up_first, str activation, bool is_auto) -> Tensor"
define(_SIGNATURE, _run, _shaped, _count_flops)
plan_first("gated_by_evidence", CALL_CACHE, _planned)
