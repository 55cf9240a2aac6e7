"""Replaces the forward of RMSNorms: which layers are RMSNorms, and by which forward."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tuner.kernels.elementwise.spec import MOST_COLUMNS
from tuner.kernels.ops import arguments, autocast, dispatch, rms_norm
from tuner.kernels.ops.left_to_torch import LeftToTorch
from tuner.kernels.ops.linear import DTYPES
from tuner.kernels.ops.operators import operator
from tuner.launch.call_cache import PLAIN_TENSORS, CallCache, is_tracing
from tuner.lookup import evidence, lookup
from tuner.models.class_patch import CHOICE, PatchedLayer, original_class, original_forward, patch_class
from tuner.models.obstacles import class_obstacle, device_obstacle, table_obstacle, tensor_obstacle
from tuner.models.trial import Trials, run_on_cpu
from tuner.problem import Problem, gemm_fields
from tuner.problem import dtype as dtypes

CALL_CACHE = CallCache()

_EPSILONS = ("variance_epsilon", "eps")
"""What models call the number that is added to the mean of the squares."""
_OFFSETS = (0.0, 1.0)
"""What a norm may add to its weight: nothing, or one, as Gemma's norms do."""
_SCALES = (1e-4, 1.0, 1e3)
"""Factors of the inputs that a layer is tried with. With the first, epsilon is most of the sum it is added to."""
_TOLERANCE = 1e-5
"""The relative error of an element that counts as rounding, in float32."""


@dataclass(frozen=True, eq=False, slots=True)
class NormChoice:
    """How patched norms are served.

    Attributes:
        epsilon: The name of the attribute that a layer adds to the mean of the squares.
        offset: What it adds to its weight.
        is_auto: Whether torch serves where no table says that `rms_norm` is no slower.
        left_to_torch: Shapes, dtypes and devices of x, and epsilons, that torch serves: by its kernel, or where there
            is an offset, which its kernel would round to x's dtype, by the layer's own forward.
    """

    epsilon: str
    offset: float
    is_auto: bool
    left_to_torch: LeftToTorch[tuple[torch.Size, torch.dtype, torch.device, float]] = field(default_factory=LeftToTorch)

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles of a layer share the choice of their process."""
        return choice_of, (self.epsilon, self.offset, self.is_auto)


@functools.cache
def choice_of(epsilon: str, offset: float, is_auto: bool) -> NormChoice:
    """The choice that all norms of this process with such an attribute and offset share."""
    return NormChoice(epsilon, offset, is_auto)


class FusedNorm(PatchedLayer):
    """An RMSNorm that runs as one kernel, ours or torch's, instead of one for each step, or by its own forward.

    It rounds once where most layers' own forward rounds twice: before and after the product with the weight.
    """

    PREFIX = "Fused"

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Compute x / sqrt(mean(x²) + epsilon) * (offset + weight) over the last dimension.

        Args:
            args: x [..., N], and what else the layer's own forward takes.
            kwargs: Nothing, or what the layer's own forward takes.

        Returns:
            [..., N], of x's dtype.
        """
        attributes, weight = self.__dict__, self._parameters.get("weight")
        choice: NormChoice | None = attributes.get(CHOICE)
        epsilon = None if choice is None else attributes.get(choice.epsilon)
        if not (choice is None or weight is None or epsilon is None or len(args) != 1 or kwargs or is_tracing()):
            (x,) = args
            left_to_torch = choice.left_to_torch
            is_plain = left_to_torch and type(x) in PLAIN_TENSORS
            if not (is_plain and (x.shape, x.dtype, x.device, epsilon) in left_to_torch):
                # No plan serves a call that is traced, or that needs a gradient or autocast.
                normalized = CALL_CACHE.run_two(x, weight, (epsilon, choice.offset, choice.is_auto))
                if normalized is not None:
                    return normalized
            if _is_fused(x, weight) and (normalized := _normalized(x, weight, epsilon, choice)) is not None:
                return normalized
        result: torch.Tensor = original_forward(FusedNorm, self)(*args, **kwargs)
        return result


def is_fused_for_one_row(layer: nn.Module) -> bool:
    """Whether our kernel is to compute a patched norm of one row, by the tables as they are now."""
    choice, weight = layer.__dict__.get(CHOICE), layer._parameters.get("weight")
    if type(layer).forward is not FusedNorm.forward or choice is None or weight is None:
        return False
    epsilon = layer.__dict__.get(choice.epsilon)
    if not isinstance(epsilon, float) or not _has_kernel(weight, epsilon):
        return False
    return not choice.is_auto or _is_faster(
        lookup.resolver(), 1, len(weight), weight.dtype, epsilon, weight.device.index
    )


def as_operator(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What a norm for which `is_fused_for_one_row` gives, as one operator of a compiled program.

    Where it has changed since, or has hooks, it runs as elsewhere.
    """
    choice, weight = layer.__dict__.get(CHOICE), layer._parameters.get("weight")
    epsilon = None if choice is None else layer.__dict__.get(choice.epsilon)
    is_plain = type(layer).forward is FusedNorm.forward and "forward" not in layer.__dict__
    is_plain = is_plain and not (layer._forward_hooks or layer._forward_pre_hooks)
    if not is_plain or weight is None or epsilon is None or x.dtype != weight.dtype or x.shape[-1:] != weight.shape:
        normalized: torch.Tensor = layer(x)
    else:
        normalized = operator("rms_norm")(x, weight, epsilon, choice.offset)
    return normalized


def _is_fused(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether one kernel computes what the layer would. A compiler is left to fuse the steps by itself."""
    if torch.compiler.is_compiling() or type(x) not in PLAIN_TENSORS or type(weight) not in PLAIN_TENSORS:
        return False
    if x.dtype != weight.dtype or x.device != weight.device or x.dim() == 0 or x.shape[-1:] != weight.shape:
        return False
    return not (arguments.ask_derivatives(x, weight) or autocast.is_on(x) or arguments.is_observed())


def _normalized(x: torch.Tensor, weight: torch.Tensor, epsilon: float, choice: NormChoice) -> torch.Tensor | None:
    """Serve a call that has no plan: by our kernel if the choice allows it, else by torch's; None if neither can."""
    asked, sources = (x.shape, x.dtype, x.device, epsilon), lookup.resolver()
    if asked not in choice.left_to_torch and _is_served(x, weight, epsilon):
        if not choice.is_auto or _is_faster(sources, *_sizes(x), x.dtype, epsilon, x.device.index):
            return _launched(x, weight, epsilon, choice)
        choice.left_to_torch.leave(asked, sources)
    return None if choice.offset else functional.rms_norm(x, weight.shape, weight, epsilon)


def _launched(x: torch.Tensor, weight: torch.Tensor, epsilon: float, choice: NormChoice) -> torch.Tensor:
    """Launch our kernel and store a plan, which asks tables again for other numbers of rows if torch may serve them."""
    columns, dtype, index = x.shape[-1], x.dtype, x.device.index

    def serves_rows(rows: int) -> bool:
        return not choice.is_auto or _is_faster(lookup.resolver(), rows, columns, dtype, epsilon, index)

    options = (epsilon, choice.offset, choice.is_auto)
    return rms_norm.checked_call(
        x, weight, epsilon, offset=choice.offset, cache=CALL_CACHE, options=options, serves_rows=serves_rows
    )


def _is_served(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> bool:
    """Whether our kernel can serve a call that torch's can."""
    if x.layout != torch.strided or not (arguments.has_memory(x) and arguments.has_memory(weight)):
        return False
    return x.numel() > 0 and _has_kernel(weight, epsilon)


def _has_kernel(weight: torch.Tensor, epsilon: float) -> bool:
    """Whether our kernel takes rows of a weight's length, dtype and device."""
    if weight.dtype not in DTYPES or not 0 < len(weight) <= MOST_COLUMNS or not gemm_fields.is_eps(epsilon):
        return False
    return arguments.has_kernels(weight.device) and dispatch.is_supported(weight.device.index)


@functools.lru_cache(maxsize=8192)
def _is_faster(_of: object, rows: int, columns: int, dtype: torch.dtype, epsilon: float, index: int | None) -> bool:
    """Whether a table says that our kernel is no slower than torch's; asked once while the same tables are named."""
    return evidence.beats_vendor(problem(rows, columns, dtype, epsilon), dispatch.device_of(index))


lookup.on_change(_is_faster.cache_clear)


def problem(rows: int, columns: int, dtype: torch.dtype, epsilon: float) -> Problem:
    """The problem of a norm whose tensors are contiguous."""
    extras = {"eps": epsilon}
    return Problem(
        min(rows, gemm_fields.MAX_SIZE), columns, 1, dtype=dtypes.name_of(dtype), op="rms_norm", extras=extras
    )


def _sizes(x: torch.Tensor) -> tuple[int, int]:
    """How many rows there are, and how long they are."""
    return x.numel() // max(x.shape[-1], 1), x.shape[-1]


def forms() -> Trials[NormForm | None]:
    """What `form_of` finds of the norms of one model."""
    return Trials(form_of)


def patch_norm(layer: nn.Module, backend: str, tried: Trials[NormForm | None]) -> str | None:
    """Replace the forward of a norm, or say why it is left on torch."""
    weight = layer._parameters["weight"]
    if why := class_obstacle(layer) or tensor_obstacle((weight,)) or device_obstacle(weight.device):
        return why
    if (form := tried.of(layer, (weight.shape, weight.dtype), ("weight",))) is None:
        return f"{original_class(layer).__name__} is no RMSNorm of its weight"
    why = _obstacle(weight, layer.__dict__[form.epsilon], backend) if form.offset else None
    if why is None:
        patch_class(layer, FusedNorm, choice_of(form.epsilon, form.offset, backend == "auto"))
    return why


def _obstacle(weight: torch.Tensor, epsilon: float, backend: str) -> str | None:
    """Why a norm with an offset, for which torch has no kernel, is left on torch; or None."""
    if not _has_kernel(weight, epsilon):
        kind = dtypes.name_of(weight.dtype)
        return f"one is added to a weight that `rms_norm` does not take: {kind} [{len(weight)}], eps {epsilon}"
    if backend == "auto":
        return table_obstacle(problem(1, len(weight), weight.dtype, epsilon), weight.device.index)
    return None


def is_norm(layer: nn.Module) -> bool:
    """Whether a layer is called a norm and has a weight and nothing else. torch's own norms are fused already."""
    parameters = {name for name, each in layer._parameters.items() if each is not None}
    kind = original_class(layer)
    is_named = "norm" in kind.__name__.lower() and not kind.__module__.startswith("torch.")
    return is_named and parameters == {"weight"} and not (layer._modules or layer._buffers)


class NormForm(NamedTuple):
    """What an RMSNorm adds: the attribute `epsilon` to the mean of the squares, and `offset` to its weight."""

    epsilon: str
    offset: float


def form_of(layer: nn.Module) -> NormForm | None:
    """What a norm adds to the mean of the squares and to its weight; None if it is no RMSNorm of its weight.

    Its own forward is tried on the CPU with a weight drawn at random.
    """
    weight = layer._parameters["weight"]
    if weight is None or weight.dim() != 1 or not weight.numel() or not weight.is_floating_point():
        return None
    names = [name for name in _EPSILONS if isinstance(layer.__dict__.get(name), float)]
    forms = [NormForm(names[0], offset) for offset in _OFFSETS] if len(names) == 1 else []
    return next((form for form in forms if _agrees(layer, weight, form)), None)


def _agrees(layer: nn.Module, weight: torch.Tensor, form: NormForm) -> bool:
    """Whether a layer gives an RMSNorm's numbers, in float32 and in its weight's dtype."""
    original, epsilon, generator = original_class(layer), layer.__dict__[form.epsilon], torch.Generator().manual_seed(0)
    tried = original.__new__(original)
    random_weight = torch.randn(weight.shape, generator=generator, device="cpu")
    inputs = torch.randn(len(_SCALES), *weight.shape, generator=generator, device="cpu")
    inputs *= torch.tensor(_SCALES, device="cpu")[:, None]
    for dtype, tolerance in ((torch.float32, _TOLERANCE), (weight.dtype, 4 * torch.finfo(weight.dtype).eps)):
        x, scale = inputs.to(dtype), random_weight.to(dtype)
        tried.__dict__.update(layer.__dict__, _parameters={"weight": scale})
        result = run_on_cpu(original.forward, tried, x)
        if not isinstance(result, torch.Tensor) or (result.dtype, result.shape) != (dtype, x.shape):
            return False
        exact = functional.rms_norm(x.double(), weight.shape, scale.double() + form.offset, epsilon)
        if not torch.allclose(result.double(), exact, rtol=tolerance, atol=0):
            return False
    return True
