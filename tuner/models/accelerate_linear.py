"""The classes of layers that `accelerate` exchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tuner.kernels.ops.linear import linear

PREFERENCE = "_tuner_preference"
"""The attribute of an exchanged layer that says who serves it."""


class TunedLinear(nn.Linear):  # type: ignore[misc]  # torch is not checked
    """A linear layer that runs on tuned kernels, by its preference; torch's own in everything else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute what nn.Linear does.

        The parameters are read from their dict, because nn.Module's attributes cost as much as a launch.
        """
        parameters = self._parameters
        try:
            weight, bias, preferred = parameters["weight"], parameters["bias"], self.__dict__[PREFERENCE]
        except KeyError:
            # A replica of nn.DataParallel; a weight that is computed at each call; or the layer was restored, and
            # somebody keeps this method.
            return nn.Linear.forward(self, x)
        return linear(x, weight, bias, preferred)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy and pickle a layer as its own class, exchanged: a class that is made here has no name to import."""
        _, _, *rest = super().__reduce_ex__(protocol)
        return _new, (untuned_class(self),), *rest


_TUNED: dict[Any, Any] = {nn.Linear: TunedLinear}
_UNTUNED: dict[Any, Any] = {TunedLinear: nn.Linear}


def tuned_class(base: Any) -> Any:
    """The class of a class's layers once they are exchanged."""
    if base not in _TUNED:
        made = _TUNED.setdefault(base, type(f"Tuned{base.__name__}", (TunedLinear, base), {}))
        _UNTUNED[made] = base
    return _TUNED[base]


def untuned_class(layer: nn.Module) -> Any:
    """The class that an exchanged layer had before; that of any other layer."""
    return _UNTUNED.get(type(layer), type(layer))


def is_exchanged(layer: nn.Module) -> bool:
    """Whether a layer is of a class of this module, and not of one that something else made of it since."""
    return type(layer) in _UNTUNED


def _new(base: Any) -> Any:
    kind = tuned_class(base)
    return kind.__new__(kind)
