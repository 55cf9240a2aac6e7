"""The RMSNorms of a model that `accelerate` runs on `rms_norm`, and how many rows a forward gives each."""

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

    A call on another dtype than the weight's is not counted: the layer's own forward serves it.
    """
    found: dict[str, NormCalls] = {}
    hooks = []
    for name, layer in model.named_modules():
        if is_norm(layer) and (made := _calls_of(layer)) is not None:
            calls = found.setdefault(sharding.generic(name), made)
            hooks.append(layer.register_forward_pre_hook(_counts(calls)))
    try:
        yield found
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


def _counts(calls: NormCalls) -> Any:
    kind, n = calls.product.a_dtype, calls.product.n

    def count(_layer: nn.Module, given: tuple[Any, ...]) -> None:
        x = given[0] if given else None
        if isinstance(x, torch.Tensor) and (dtypes.name_of(x.dtype), x.shape[-1]) == (kind, n):
            calls.rows.append(x.numel() // n)

    return count
