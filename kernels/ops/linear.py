"""The product of a linear layer, x @ weight.t() + bias, by tuned kernels or by torch as the tables' evidence says.

`tuner.models.accelerate` makes layers call it. A repeated call finds its plan by x, the weight and the bias themselves,
so it makes no view of the weight. Whatever the kernels do not take is torch's own, which also names what is wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from tuner.kernels.ops import arguments, autocast, dispatch
from tuner.kernels.ops import matmul as product
from tuner.kernels.ops.left_to_torch import Asked, LeftToTorch, asked_of
from tuner.kernels.ops.matmul_call import PLAIN, CallTensors
from tuner.kernels.ops.operators import Planned, define, operator, plan_first
from tuner.launch.call_cache import PLAIN_TENSORS, CallCache, is_tracing
from tuner.launch.torch_precision import precision_of
from tuner.lookup import evidence, lookup
from tuner.problem import Problem
from tuner.problem import dtype as dtypes
from tuner.problem.gemm_fields import MAX_SIZE

DTYPES = (torch.float32, *autocast.HALVES)
CALL_CACHE = CallCache()


@dataclass(frozen=True, eq=False, slots=True)
class LinearPreference:
    """Who serves the layers of one family.

    Attributes:
        is_auto: Whether torch serves what no table says that the kernels are faster at. Otherwise the kernels serve
            everything that they take.
        options: The key of these calls among the plans.
        left_to_torch: What torch serves, see `asked_of`.
    """

    is_auto: bool
    options: tuple[bool, int, int, bool]
    left_to_torch: LeftToTorch[Asked] = field(default_factory=LeftToTorch)

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles of a layer share the preference of their process."""
        return linear_preference, self.options


@functools.cache
def linear_preference(is_auto: bool, n: int, k: int, has_bias: bool) -> LinearPreference:
    """The preference that all layers [N, K] of this process share."""
    return LinearPreference(is_auto, (is_auto, n, k, has_bias))


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, preferred: LinearPreference
) -> torch.Tensor:
    """Compute torch.nn.functional.linear(x, weight, bias).

    Raises:
        Exception: What torch raises for operands that do not fit; what `matmul` raises where no kernel could be
            launched.
    """
    if is_tracing():
        return _unplanned(x, weight, bias, preferred)
    left_to_torch = preferred.left_to_torch
    if left_to_torch and type(x) in PLAIN_TENSORS and not x.is_nested and asked_of(x) in left_to_torch:
        return F.linear(x, weight, bias)
    if bias is None:
        result = CALL_CACHE.run_two(x, weight, preferred.options)
    else:
        result = CALL_CACHE.run((x, weight, bias), preferred.options)
    return _unplanned(x, weight, bias, preferred) if result is None else result


def _unplanned(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, preferred: LinearPreference
) -> torch.Tensor:
    """A call that no plan serves: the first of its kind, or one that needs a gradient, is traced or transformed."""
    if not _is_served(x, weight, bias):
        return F.linear(x, weight, bias)
    if autocast.is_on(x):
        return _autocast_call(x, weight, bias, preferred)
    has_gradient = arguments.ask_derivatives(x, weight, bias)
    is_traced = arguments.is_followed()
    if _is_torchs(x, weight, bias, preferred, has_gradient=has_gradient, is_traced=is_traced):
        return F.linear(x, weight, bias)
    if has_gradient:
        return product.matmul(x, weight.t(), bias=bias)
    if is_traced:
        result: torch.Tensor = operator("linear")(x, weight, bias, preferred.is_auto)
        return result
    remember = functools.partial(_remember, (x, weight, bias), preferred)
    return product.checked_call(CallTensors(None, x, weight.t(), bias, None, None), PLAIN, remember=remember)


def _remember(
    given: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    preferred: LinearPreference,
    *call: Any,
    **options: Any,
) -> None:
    """Store a call's plan; where torch may serve other rows, what tables say of them is asked for each M."""
    if preferred.is_auto:
        x, weight, bias = given
        any_m = problem(2, weight.shape[0], weight.shape[1], x.dtype, bias is not None)
        device = dispatch.device_of(x.device.index)
        options["serves_rows"] = lambda m: evidence.beats_vendor(any_m.with_m(m), device)
    CALL_CACHE.remember(given, preferred.options, *call, **options)


def _autocast_call(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, preferred: LinearPreference
) -> torch.Tensor:
    if preferred.is_auto and weight.dtype != torch.get_autocast_dtype(x.device.type):
        return F.linear(x, weight, bias)  # torch keeps its copy of the weight for the block; ours is made each call
    lowered_x, lowered_weight, lowered_bias = autocast.lowered(x, weight, bias)
    assert lowered_x is not None
    assert lowered_weight is not None
    with autocast.off(x):
        return linear(lowered_x, lowered_weight, lowered_bias, preferred)


def _is_torchs(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    preferred: LinearPreference,
    *,
    has_gradient: bool,
    is_traced: bool,
) -> bool:
    """Whether torch is to serve operands that the kernels take; an operator decides when it runs."""
    if weight.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype):
        return True  # an error, which torch words
    if not preferred.is_auto or (is_traced and not has_gradient):
        return False
    if has_gradient:
        return True  # the tables of a forward pass say nothing of its gradients' products
    sources = lookup.resolver()
    if _is_faster(x, weight, bias):
        return False
    preferred.left_to_torch.leave(asked_of(x), sources)
    return True


def _is_served(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether the operands are such that the kernels compute what torch would."""
    given = (x, weight) if bias is None else (x, weight, bias)
    if not are_plain(given):
        return False
    if bias is not None and (bias.shape != weight.shape[:1] or (bias.stride(0) != 1 and len(bias) > 1)):
        return False  # torch broadcasts and copies
    if x.dim() < 2 or weight.dim() != 2 or x.shape[-1] != weight.shape[1] or any(e.device != x.device for e in given):
        return False
    return all(each.dtype in DTYPES for each in given) and (is_tracing() or arguments.has_kernels(x.device))


def are_plain(given: Sequence[torch.Tensor]) -> bool:
    """Whether operands are plain dense tensors: with memory, or such as an operator may take that is recorded."""
    if is_tracing():
        is_plain = all(type(each) in PLAIN_TENSORS for each in given)  # the operator asks for the device, when it runs
    elif arguments.is_recorded() or torch.compiler.is_compiling():
        is_plain = not any(hasattr(each, "__tensor_flatten__") for each in given)  # tensors that wrap others
    else:
        is_plain = all(type(each) in PLAIN_TENSORS and arguments.has_memory(each) for each in given)
    return is_plain and all(each.layout == torch.strided and not each.is_nested for each in given)


def _is_faster(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether a table says that the kernels are no slower than torch at this M."""
    (n, k), rows = weight.shape, x.numel() // max(x.shape[-1], 1)
    if not (0 < rows <= MAX_SIZE and n and k):
        return False
    return evidence.beats_vendor(problem(rows, n, k, x.dtype, bias is not None), dispatch.device_of(x.device.index))


def problem(m: int, n: int, k: int, dtype: torch.dtype, has_bias: bool) -> Problem:
    """The problem of a layer whose tensors are contiguous."""
    precision = precision_of(dtype)
    epilogue = "bias" if has_bias else "none"
    return Problem(m, n, k, dtype=dtypes.name_of(dtype), layout="nt", epilogue=epilogue, precision=precision)


def _run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_auto: bool) -> torch.Tensor:
    """The operator's own call."""
    return linear(x, weight, bias, linear_preference(is_auto, *weight.shape, bias is not None))


def _planned(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_auto: bool) -> Planned:
    """By its preference's options, without the preference."""
    return (x, weight, bias), (is_auto, *weight.shape, bias is not None)


def _shaped(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, _is_auto: bool) -> torch.Tensor:
    arguments.check_together(x=x, weight=weight, bias=bias)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _count_flops(x: torch.Tensor, weight: torch.Tensor, *_: object, **__: object) -> int:
    return 2 * int(x.numel()) * int(weight.shape[0])


define("linear(Tensor x, Tensor weight, Tensor? bias, bool is_auto) -> Tensor", _run, _shaped, _count_flops)
plan_first("linear", CALL_CACHE, _planned)
