"""Finds the RMSNorms of a model that `accelerate` runs on `rms_norm`, and the rows that a forward gives each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from tuner.models import sharding
from tuner.models.accelerate_norm import form_of, is_norm
from tuner.models.products import Product
from tuner.problem import dtype as dtypes
from tuner.problem import gemm_fields
from tuner.problem.gemm_fields import contiguous_aligned


class Norms(NamedTuple):
    """Norms that have a generic name, a length and a dtype in common; layers may differ in them.

    Attributes:
        name: their generic name.
        product: what they compute, with the weight's length as N.
        eps: what they add to the mean of the squares.
    """

    name: str
    product: Product
    eps: float


@contextmanager
def counted(model: nn.Module) -> Iterator[dict[Norms, list[int]]]:
    """Note how many rows each call of a model's norms has inside the block, in order.

    Left out are calls that the layer's own forward serves: in another dtype than the weight's, and with a gate.
    """
    counts: dict[Norms, list[int]] = {}
    hooks = []
    for name, layer in model.named_modules():
        if is_norm(layer) and (norms := _norms_of(sharding.generic(name), layer)) is not None:
            rows = counts.setdefault(norms, [])
            hooks.append(layer.register_forward_pre_hook(_counting(norms.product, rows)))
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def _norms_of(name: str, layer: nn.Module) -> Norms | None:
    weight, form = layer._parameters["weight"], form_of(layer)
    if weight is None or form is None or not gemm_fields.is_eps(layer.__dict__[form.epsilon]):
        return None
    n, kind = len(weight), dtypes.name_of(weight.dtype)
    aligned = contiguous_aligned("rms_norm", (1, n, 1), (kind, kind, kind), "nn")
    product = Product("rms_norm", weight.device.type, n, 1, kind, kind, kind, "nn", aligned)
    return Norms(name, product, layer.__dict__[form.epsilon])


def _counting(product: Product, rows: list[int]) -> Any:
    """A hook that notes the rows of each call."""

    def count(_layer: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0] if len(args) == 1 else None
        if isinstance(x, torch.Tensor) and (dtypes.name_of(x.dtype), x.shape[-1]) == (product.a_dtype, product.n):
            rows.append(x.numel() // product.n)

    return count
