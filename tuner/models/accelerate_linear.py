"""Replaces the forward of linear layers: which layers, and by which forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tuner.kernels.ops.linear import DTYPES, LinearPreference, linear, linear_preference, problem
from tuner.models.class_patch import CHOICE, PatchedLayer, original_class, patch_class
from tuner.models.obstacles import class_obstacle, device_obstacle, table_obstacle, tensor_obstacle
from tuner.problem import dtype as dtypes

NOT_TRANSPOSED = "Conv1D, whose weight is stored [inputs, outputs]"
"""Why a layer for which `is_conv1d` holds stays on torch."""
_COMPUTED: Any = object()
_CONV1D = "transformers.pytorch_utils.Conv1D"


class TunedLinear(PatchedLayer, nn.Linear):  # type: ignore[misc]  # torch is not checked
    """A linear layer that runs on tuned kernels where its preference says so, and on torch elsewhere."""

    PREFIX = "Tuned"

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name, by which callers may pass it
        """Compute what nn.Linear does.

        The parameters are read from their dict, because nn.Module's attributes cost as much as a launch.
        """
        parameters = self._parameters
        try:
            weight, bias, preferred = parameters["weight"], parameters["bias"], self.__dict__[CHOICE]
        except KeyError:
            # A replica of nn.DataParallel; a weight that is computed at each call; or a restored layer, whose
            # caller kept this method from before.
            return nn.Linear.forward(self, input)
        return linear(input, weight, bias, preferred)


class Handover:
    """What attention hands to its layers while its forward runs.

    Attributes:
        given: Its input, and the products of that with the weights of its layers, None in place of one that a layer
            has taken; None at all other times.
    """

    def __init__(self) -> None:
        self.given: tuple[torch.Tensor, list[torch.Tensor | None]] | None = None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class HandedPreference(LinearPreference):
    """Who serves a layer whose block may have multiplied already, where it has not.

    Attributes:
        handover: Where its block puts the products.
        place: Which of them is the layer's.
    """

    handover: Handover
    place: int

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles of a block share the preference of their process, and have a handover of their own."""
        return handed_preference, (self.options, self.handover, self.place)


def handed_preference(options: tuple[bool, int, int, bool], handover: Handover, place: int) -> HandedPreference:
    """The preference that `linear_preference` gives for some options, of a layer with a place in a handover."""
    left_to_torch = linear_preference(*options).left_to_torch
    return HandedPreference(
        is_auto=options[0], options=options, left_to_torch=left_to_torch, handover=handover, place=place
    )


class HandedLinear(TunedLinear):
    """A layer that returns the product that its block has made of the input; else it is a `TunedLinear`.

    Another thread's product is of another input, which no other layer is given.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name, by which callers may pass it
        """Compute what nn.Linear does."""
        choice = self.__dict__.get(CHOICE)
        if isinstance(choice, HandedPreference) and (given := choice.handover.given) and given[0] is input:
            product = given[1][choice.place]
            if product is not None:
                given[1][choice.place] = None  # the caller may change it, and ask again
                return product
        return TunedLinear.forward(self, input)


def patch_linear(layer: nn.Linear, backend: str) -> str | None:
    """Replace the forward of a linear layer, or say why it is left on torch."""
    if why := _obstacle(layer):
        return why
    (n, k), has_bias = layer.weight.shape, layer.bias is not None
    if backend == "auto" and n and k:
        family = problem(1, n, k, layer.weight.dtype, has_bias)
        if why := table_obstacle(family, layer.weight.device.index):
            return why
    patch_class(layer, TunedLinear, linear_preference(backend == "auto", n, k, has_bias))
    return None


def is_conv1d(layer: nn.Module) -> bool:
    """Whether a layer is the linear one of GPT-2 and its kind: transformers' `Conv1D`, which is no nn.Linear."""
    return any(f"{each.__module__}.{each.__qualname__}" == _CONV1D for each in type(layer).__mro__)


def _obstacle(layer: nn.Linear) -> str | None:  # noqa: PLR0911  one return for each reason
    """Why a layer is left on torch, or None."""
    if why := class_obstacle(layer):
        return why
    if original_class(layer).forward is not nn.Linear.forward:
        return f"{original_class(layer).__name__} defines its own forward"
    weight, bias = (layer._parameters.get(name, _COMPUTED) for name in ("weight", "bias"))
    if weight is None or weight is _COMPUTED or bias is _COMPUTED:
        return "the weight or bias is computed at each call"
    if why := tensor_obstacle((weight,) if bias is None else (weight, bias)):
        return why
    if weight.is_nested or weight.layout != torch.strided:
        return "the weight is nested" if weight.is_nested else f"the weight has the layout {weight.layout}"
    if weight.dim() != 2:
        return f"the weight has shape {list(weight.shape)}"
    if weight.dtype not in DTYPES:
        return f"the weight is {dtypes.name_of(weight.dtype)}"
    return device_obstacle(weight.device)
