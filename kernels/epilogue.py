"""What happens to a sum before it is stored: the activations in Triton, and the same in torch for references."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):  # noqa: ANN201  jit bodies take no such annotation
    """Apply an activation of `tuner.problem.ACTIVATIONS` to float32 values; a NaN stays a NaN.

    gelu is the tanh form, 0.5·x·(1 + tanh(u)), written as x·sigmoid(2u): the same number by an identity, without a
    tanh (the interpreter has none), and stable: at either end exp overflows to infinity and the sigmoid becomes 0 or 1.
    """
    if ACTIVATION == "relu":
        # Not tl.maximum, which turns a NaN into 0.
        x = tl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "leaky_relu":
        x = tl.where(x < 0.0, 0.01 * x, x)
    elif ACTIVATION == "gelu":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # 2·sqrt(2/pi)
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    else:
        tl.static_assert(ACTIVATION == "none", "unknown activation")
    return x


@triton.jit
def saturate(x, dtype: tl.constexpr):  # noqa: ANN201
    """Clamp float32 values to what an 8-bit float can hold, as NVIDIA's own conversion does; other dtypes pass."""
    if dtype == tl.float8e4nv:
        x = tl.where(x > 448.0, 448.0, tl.where(x < -448.0, -448.0, x))
    elif dtype == tl.float8e5:
        x = tl.where(x > 57344.0, 57344.0, tl.where(x < -57344.0, -57344.0, x))
    return x


def activated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """The same activation by torch, in the tensor's own dtype."""
    from torch.nn import functional

    if activation == "relu":
        return functional.relu(x)
    if activation == "leaky_relu":
        return functional.leaky_relu(x, 0.01)
    if activation == "gelu":
        return functional.gelu(x, approximate="tanh")
    return functional.silu(x) if activation == "silu" else x


def saturated(x: torch.Tensor, out_dtype: str) -> torch.Tensor:
    """The same clamp by torch: to the range of `out_dtype` where it is an 8-bit float."""
    import torch

    if not out_dtype.startswith("float8"):
        return x
    limit = torch.finfo(getattr(torch, out_dtype)).max
    return x.clamp(-limit, limit)
