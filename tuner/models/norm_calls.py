"""Finds the RMSNorms of a model that `accelerate` runs on `rms_norm`, and the rows that a forward gives each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tuner.models import sharding
from tuner.models.accelerate_norm import form_of, is_norm
from tuner.models.products import Product
from tuner.problem import dtype as dtypes
from tuner.problem import gemm_fields
from tuner.problem.gemm_fields import contiguous_aligned


@dataclass(frozen=True, slots=True)
class NormCalls:
    """Norms of one generic name.

    Attributes:
        product: what they compute, with the weight's length as N.
        eps: what they add to the mean of the squares.
        rows: how many rows each call had, in order.
    """

    product: Product
    eps: float
    rows: list[int] = field(default_factory=list)


@contextmanager
def counted(model: nn.Module) -> Iterator[dict[str, NormCalls]]:
    """Count the rows of a model's norms inside the block, by their generic names.

    A call in another dtype than the weight's is not counted, because the layer's own forward serves it.
    """
    counts: dict[str, NormCalls] = {}
    hooks = []
    for name, layer in model.named_modules():
        if is_norm(layer) and (empty := _calls_of(layer)) is not None:
            calls = counts.setdefault(sharding.generic(name), empty)
            hooks.append(layer.register_forward_pre_hook(_counting(calls)))
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def _calls_of(layer: nn.Module) -> NormCalls | None:
    weight, form = layer._parameters["weight"], form_of(layer)
    if weight is None or form is None or not gemm_fields.is_eps(layer.__dict__[form.epsilon]):
        return None
    n, kind = len(weight), dtypes.name_of(weight.dtype)
    aligned = contiguous_aligned("rms_norm", (1, n, 1), (kind, kind, kind), "nn")
    product = Product("rms_norm", weight.device.type, n, 1, kind, kind, kind, "nn", aligned)
    return NormCalls(product, layer.__dict__[form.epsilon])


def _counting(calls: NormCalls) -> Any:
    """A hook that counts the rows of each call."""
    kind, n = calls.product.a_dtype, calls.product.n

    def count(_layer: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0] if args else None
        if isinstance(x, torch.Tensor) and (dtypes.name_of(x.dtype), x.shape[-1]) == (kind, n):
            calls.rows.append(x.numel() // n)

    return count
