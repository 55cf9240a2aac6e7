"""The RMSNorms that `accelerate` exchanges: which layers are RMSNorms, and their forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tuner.kernels.ops import arguments, autocast
from tuner.launch.call_cache import PLAIN_TENSORS
from tuner.models.exchange import GIVEN, Exchanged, exchange, own_class

_EPSILONS = ("variance_epsilon", "eps")
"""What models call the number that is added to the mean of the squares."""
_SCALES = (1e-4, 1.0, 1e3)
"""Sizes of the inputs that a layer is tried with: of the first, the added number is most of the sum."""
_CLOSE = 1e-5
_REFUSED = (TypeError, ValueError, AttributeError, LookupError, RuntimeError)


class FusedNorm(Exchanged):
    """An RMSNorm that is one kernel of torch's in place of one for each step; its own forward in everything else.

    It rounds once where most layers' own forward rounds twice: before and after the product with the weight.
    """

    PREFIX = "Fused"

    def forward(self, x: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        """Compute x / sqrt(mean(x²) + epsilon) * weight over the last dimension.

        Args:
            x: [..., N].
            rest, named: What the layer's own forward takes beside x.

        Returns:
            [..., N], of x's dtype.
        """
        weight, epsilon = self._parameters.get("weight"), self.__dict__.get(self.__dict__.get(GIVEN, ""))
        if weight is None or epsilon is None or rest or named or not _is_fused(x, weight):
            # Without an epsilon the layer may be restored, and somebody keeps this method.
            own = super().forward if isinstance(self, FusedNorm) else self.forward
            result: torch.Tensor = own(x, *rest, **named)
            return result
        return functional.rms_norm(x, weight.shape, weight, epsilon)


def _is_fused(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether torch's own kernel computes what the layer would; a compiler fuses the steps better by itself."""
    if torch.compiler.is_compiling() or type(x) not in PLAIN_TENSORS or type(weight) not in PLAIN_TENSORS:
        return False
    if x.dtype != weight.dtype or x.device != weight.device or x.dim() == 0 or x.shape[-1:] != weight.shape:
        return False
    return not (arguments.ask_derivatives(x, weight) or autocast.is_on(x) or arguments.is_recorded())


def exchange_norm(layer: nn.Module, backend: str) -> str | None:
    """Exchange a norm, or say why it keeps its own forward."""
    if backend == "torch":
        return "as asked"
    if "forward" in vars(layer):
        return "whose forward somebody replaced"
    weight = layer._parameters["weight"]
    if type(weight) not in (torch.Tensor, nn.Parameter):
        return f"with weights of class {type(weight).__name__}"
    if not arguments.has_kernels(weight.device):
        return f"on {weight.device.type} (move the model to a GPU first)"
    if (epsilon := epsilon_of(layer)) is None:
        return f"norms that are no RMSNorm of their weight ({own_class(layer).__name__})"
    exchange(layer, FusedNorm, epsilon)
    return None


def is_norm(layer: nn.Module) -> bool:
    """Whether a layer is called a norm, and has a weight and nothing else; torch's own are fused as they are."""
    held = {name for name, each in layer._parameters.items() if each is not None}
    is_named = "norm" in own_class(layer).__name__.lower() and not own_class(layer).__module__.startswith("torch.")
    return is_named and held == {"weight"} and not (layer._modules or layer._buffers)


def epsilon_of(layer: nn.Module) -> str | None:
    """The name of the attribute that a norm adds to the mean of the squares; None if it is no RMSNorm of its weight.

    Its own forward is tried on the CPU with a weight drawn at random.
    """
    weight = layer._parameters["weight"]
    if weight is None or weight.dim() != 1 or not weight.is_floating_point():
        return None
    names = [name for name in _EPSILONS if isinstance(layer.__dict__.get(name), float)]
    return names[0] if len(names) == 1 and _agrees(layer, weight, layer.__dict__[names[0]]) else None


def _agrees(layer: nn.Module, weight: torch.Tensor, epsilon: float) -> bool:
    own, generator = own_class(layer), torch.Generator().manual_seed(0)
    tried = own.__new__(own)
    drawn = torch.randn(weight.shape, generator=generator)
    x = torch.randn(len(_SCALES), *weight.shape, generator=generator) * torch.tensor(_SCALES)[:, None]
    with torch.no_grad():
        for dtype, close in ((torch.float32, _CLOSE), (weight.dtype, 4 * torch.finfo(weight.dtype).eps)):
            given, scale = x.to(dtype), drawn.to(dtype)
            tried.__dict__.update(layer.__dict__, _parameters={"weight": scale})
            try:
                result = own.forward(tried, given)
            except _REFUSED:
                return False
            exact = functional.rms_norm(given.double(), weight.shape, scale.double(), epsilon)
            if getattr(result, "dtype", None) != dtype or result.shape != given.shape:
                return False
            if not torch.allclose(result.double(), exact, rtol=close, atol=0):
                return False
    return True
