"""What a call of `matmul` is given: its tensors, and its options."""

from __future__ import annotations

from typing import NamedTuple

import torch


class CallTensors(NamedTuple):
    """The tensors of a call of `matmul`."""

    out: torch.Tensor | None
    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None
    scale_a: torch.Tensor | None
    scale_b: torch.Tensor | None


class MatmulOptions(NamedTuple):
    """The options of a call of `matmul` as they were given; None for torch's default."""

    activation: str | None = None
    out_dtype: torch.dtype | str | None = None
    precision: str | None = None
    fast_accum: bool | None = None
    invariant: bool = False


PLAIN = MatmulOptions()
"""The options of most calls. A dict finds a key faster when it is the same object each time."""
