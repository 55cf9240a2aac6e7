"""What is applied to a sum before it is stored, in torch: epilogue.py has it for the kernels."""

from __future__ import annotations

import torch
from torch.nn import functional


def activated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Apply the activation in torch, in the tensor's own dtype."""
    if activation == "relu":
        return functional.relu(x)
    if activation == "leaky_relu":
        return functional.leaky_relu(x, 0.01)
    if activation == "gelu":
        return functional.gelu(x, approximate="tanh")
    return functional.silu(x) if activation == "silu" else x


def saturated(x: torch.Tensor, out_dtype: str) -> torch.Tensor:
    """Clamp in torch to the range of `out_dtype` if that is an 8-bit float."""
    if not out_dtype.startswith("float8"):
        return x
    limit = torch.finfo(getattr(torch, out_dtype)).max
    return x.clamp(-limit, limit)
