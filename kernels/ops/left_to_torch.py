"""Calls that tables leave to torch, which so ask them once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

import torch

from tuner.bounded import make_room
from tuner.launch.torch_precision import precision_of
from tuner.lookup import lookup

_MOST = 8192
Call = TypeVar("Call", bound=Hashable)
Asked = tuple[torch.Size, torch.dtype, torch.device, str]
"""See `asked_of`."""


class LeftToTorch(set[Call]):
    """Keys of calls that tables leave to torch; emptied when other tables are named."""

    def __init__(self) -> None:
        super().__init__()
        lookup.on_change(self.clear)

    def leave(self, call: Call, asked: object) -> None:
        """Add a call of which tables were asked.

        Args:
            call: What is known of such calls before tables are asked.
            asked: `tuner.lookup.lookup.resolver()`, from before that. If another thread has named other tables since,
                the next call asks them.
        """
        if lookup.resolver() is not asked:
            return
        make_room(self, _MOST)
        self.add(call)


def asked_of(x: torch.Tensor) -> Asked:
    """What tables are asked about a product, beside its weights: x's shape, dtype and device, and how it is multiplied.

    With another setting of float32's precision, or on another GPU, torch need not be faster.
    """
    return x.shape, x.dtype, x.device, precision_of(x.dtype)
