"""The linear layers that `accelerate` exchanges: which, and their forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tuner.kernels.ops import arguments
from tuner.kernels.ops.linear import DTYPES, linear, preference, problem
from tuner.models.exchange import GIVEN, Exchanged, exchange, is_exchanged, own_class, without_table
from tuner.problem import dtype as dtypes

_COMPUTED: Any = object()


class TunedLinear(Exchanged, nn.Linear):  # type: ignore[misc]  # torch is not checked
    """A linear layer that runs on tuned kernels, by the preference it was given; torch's own in everything else."""

    PREFIX = "Tuned"

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name, by which it may be given
        """Compute what nn.Linear does.

        The parameters are read from their dict, because nn.Module's attributes cost as much as a launch.
        """
        parameters = self._parameters
        try:
            weight, bias, preferred = parameters["weight"], parameters["bias"], self.__dict__[GIVEN]
        except KeyError:
            # A replica of nn.DataParallel; a weight that is computed at each call; or the layer was restored, and
            # somebody keeps this method.
            return nn.Linear.forward(self, input)
        return linear(input, weight, bias, preferred)


def exchange_linear(layer: nn.Linear, backend: str) -> str | None:
    """Exchange a linear layer, or say why torch keeps it."""
    if why := _obstacle(layer, backend):
        return why
    (n, k), has_bias = layer.weight.shape, layer.bias is not None
    if backend == "auto" and n and k:
        why = without_table(problem(1, n, k, layer.weight.dtype, has_bias), layer.weight.device.index)
        if why is not None:
            return why
    exchange(layer, TunedLinear, preference(backend == "auto", n, k, has_bias))
    return None


def _obstacle(layer: nn.Linear, backend: str) -> str | None:  # noqa: PLR0911  one return for each reason
    """Why torch keeps a layer, or None."""
    if backend == "torch":
        return "as asked"
    if "forward" in vars(layer):
        return "whose forward somebody replaced"
    if type(layer).forward not in (nn.Linear.forward, TunedLinear.forward):
        return f"with a forward of its own ({own_class(layer).__name__})"
    if isinstance(layer, TunedLinear) and not is_exchanged(layer):
        return f"whose class was made of an exchanged one since ({type(layer).__name__})"
    weight, bias = (layer._parameters.get(name, _COMPUTED) for name in ("weight", "bias"))
    if weight is None or weight is _COMPUTED or bias is _COMPUTED:
        return "whose weight or bias is computed at each call"
    given = (weight,) if bias is None else (weight, bias)
    if odd := {type(each).__name__ for each in given if type(each) not in (torch.Tensor, nn.Parameter)}:
        return f"with weights of class {', '.join(sorted(odd))}"
    if weight.is_nested or weight.layout != torch.strided:
        return "whose weight is nested" if weight.is_nested else f"whose weight is {weight.layout}"
    if weight.dim() != 2:
        return f"whose weight has shape {list(weight.shape)}"
    if weight.dtype not in DTYPES:
        return f"whose weight is {dtypes.name_of(weight.dtype)}"
    if not arguments.has_kernels(weight.device):
        return f"on {weight.device.type} (move the model to a GPU first)"
    return None
