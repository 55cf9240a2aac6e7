"""The forward of linear layers that `accelerate` exchanged."""

from __future__ import annotations

import torch
from torch import nn

from tuner.kernels.ops.linear import linear
from tuner.models.exchange import GIVEN, Exchanged


class TunedLinear(Exchanged, nn.Linear):  # type: ignore[misc]  # torch is not checked
    """A linear layer that runs on tuned kernels, by the preference it was given; torch's own in everything else."""

    PREFIX = "Tuned"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute what nn.Linear does.

        The parameters are read from their dict, because nn.Module's attributes cost as much as a launch.
        """
        parameters = self._parameters
        try:
            weight, bias, preferred = parameters["weight"], parameters["bias"], self.__dict__[GIVEN]
        except KeyError:
            # A replica of nn.DataParallel; a weight that is computed at each call; or the layer was restored, and
            # somebody keeps this method.
            return nn.Linear.forward(self, x)
        return linear(x, weight, bias, preferred)
