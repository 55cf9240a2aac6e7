"""Shards the products of a model's weights over GPUs, by the model's own tensor-parallel plan."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from tuner.errors import UsageError
from tuner.models.products import Product
from tuner.problem.gemm_fields import contiguous_aligned

_ANY_M = 16
"""Activations are stored row by row, so alignment does not depend on their M."""


def generic(name: str) -> str:
    """The name that a parameter or a module has in all layers: "model.layers.*.mlp.down_proj.weight"."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def check(model: Any, tp: int) -> None:
    """Check that a model can be sharded over so many GPUs.

    Raises:
        UsageError: it has no plan, or the number does not divide its heads.
    """
    if not _plan(model):
        raise UsageError(f"{type(model).__name__} has no tensor-parallel plan: leave --tp out")
    config = model.config.get_text_config()
    layers = config.per_layer_config if getattr(config, "is_heterogeneous", False) else (config,)
    of_heads = (
        ("q_proj", "num_attention_heads", "attention heads"),
        ("k_proj", "num_key_value_heads", "key-value heads"),
    )
    split = dict[tuple[int, str], None]()
    for projection, field, noun in of_heads:
        if any(name.endswith(projection) and style == "colwise" for name, style in _plan(model).items()):
            numbers = (getattr(layer, field, None) for layer in layers)
            split |= {(heads, noun): None for heads in numbers if isinstance(heads, int)}
    for heads, noun in split:
        if heads % tp:
            expected = _divisors(math.gcd(*(each for each, _ in split)))
            raise UsageError(f"--tp {tp} does not divide the {heads} {noun} of {type(model).__name__}: {expected}")


def shard(model: Any, product: Product, weight: str, tp: int) -> Product:
    """One GPU's part of a product.

    Raises:
        UsageError: the number of GPUs does not divide what is to be sharded.
    """
    style = _style(model, weight)
    if style is None:
        return product
    # Styles name dimensions of the stored weight [..., out, in]: "rowwise" is its last, "colwise" the one before. In a
    # weight that is stored [..., in, out] it is the other way round.
    is_n = (style == "colwise") == (product.layout[1] == "t")
    size = product.n if is_n else product.k
    if size % tp:
        kind = "outputs" if is_n else "inputs"
        raise UsageError(f"--tp {tp} does not divide the {size} {kind} of {weight}: {_divisors(size)}")
    # Where each GPU computes a part of the sum, the bias is added to the whole sum.
    part = product._replace(n=size // tp) if is_n else product._replace(k=size // tp, epilogue="none")
    dtypes = (part.a_dtype, part.b_dtype, part.out_dtype)
    return part._replace(aligned=contiguous_aligned(part.op, (_ANY_M, part.n, part.k), dtypes, part.layout))


def is_whole(model: Any, weight: str) -> bool:
    """Whether the plan gives each GPU all of a weight."""
    return _style(model, weight) is None


def divides_heads(model: Any, norm: str) -> bool:
    """Whether the plan gives each GPU a part of the heads whose rows a norm has: whether a layer beside it keeps them.

    Args:
        model: see `config.build`.
        norm: the generic name of a norm.
    """
    block = norm.rpartition(".")[0]
    return any(style == "colwise" and name.rpartition(".")[0] == block for name, style in _plan(model).items())


def _style(model: Any, weight: str) -> str | None:
    """How the plan shards a weight: "colwise", "rowwise" or not at all."""
    plan, name = _plan(model), generic(weight)
    style = plan.get(name) or plan.get(name.rpartition(".")[0], "")
    match = re.fullmatch(r"(?!embedding).*(colwise|rowwise).*", style)
    return match[1] if match else None


def _plan(model: Any) -> Mapping[str, str]:
    return getattr(model, "tp_plan", None) or {}


def _divisors(size: int) -> str:
    divisors = [str(tp) for tp in range(2, min(size, 64) + 1) if size % tp == 0]
    if not divisors:
        return "leave --tp out"
    return f"expected one of {', '.join(divisors)}" if len(divisors) > 1 else f"expected {divisors[0]}"
