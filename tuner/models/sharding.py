"""Products of a model's weights as one GPU of several computes them, by the model's own tensor-parallel plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tuner.errors import UsageError
from tuner.models.products import Product
from tuner.problem.gemm_fields import contiguous_aligned

_ANY_M = 16
"""Activations are stored row by row, so what is aligned does not depend on their M."""


def generic(name: str) -> str:
    """The name of a parameter or a module for all layers: "model.layers.*.mlp.down_proj.weight"."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def check(model: Any, tp: int) -> None:
    """Check that a model can be sharded over so many GPUs.

    Raises:
        UsageError: it has no plan, or the number does not divide its heads.
    """
    if not _plan(model):
        raise UsageError(f"{type(model).__name__} has no tensor-parallel plan: leave --tp out")
    config = model.config.get_text_config()
    of_heads = (
        ("q_proj", "num_attention_heads", "attention heads"),
        ("k_proj", "num_key_value_heads", "key-value heads"),
    )
    for projection, field, noun in of_heads:
        heads = getattr(config, field, None)
        is_split = any(name.endswith(projection) and style == "colwise" for name, style in _plan(model).items())
        if is_split and isinstance(heads, int) and heads % tp:
            raise UsageError(
                f"--tp {tp} does not divide the {heads} {noun} of {type(model).__name__}: {_divisors(heads)}"
            )


def shard(model: Any, product: Product, weight: str, tp: int) -> Product:
    """One GPU's part of a product.

    Raises:
        UsageError: the number of GPUs does not divide what is to be sharded.
    """
    style = _style(model, weight)
    if style is None:
        return product
    # Styles name dimensions of the stored weight [..., out, in]: "rowwise" is its last, "colwise" the one before. A
    # weight that is stored [..., in, out] has them exchanged.
    is_n = (style == "colwise") == (product.layout[1] == "t")
    size = product.n if is_n else product.k
    if size % tp:
        kind = "outputs" if is_n else "inputs"
        raise UsageError(f"--tp {tp} does not divide the {size} {kind} of {weight}: {_divisors(size)}")
    # Where each GPU has a part of the sum, the bias is added after the sum.
    part = product._replace(n=size // tp) if is_n else product._replace(k=size // tp, epilogue="none")
    dtypes = (part.a_dtype, part.b_dtype, part.out_dtype)
    return part._replace(aligned=contiguous_aligned(part.op, (_ANY_M, part.n, part.k), dtypes, part.layout))


def is_whole(model: Any, weight: str) -> bool:
    """Whether the plan leaves all of a weight to each GPU."""
    return _style(model, weight) is None


def _style(model: Any, weight: str) -> str | None:
    """How the plan shards a weight: "colwise", "rowwise" or not at all."""
    plan, name = _plan(model), generic(weight)
    style = plan.get(name) or plan.get(name.rpartition(".")[0], "")
    found = re.fullmatch(r"(?!embedding).*(colwise|rowwise).*", style)
    return found[1] if found else None


def _plan(model: Any) -> Mapping[str, str]:
    return getattr(model, "tp_plan", None) or {}


def _divisors(size: int) -> str:
    found = [str(tp) for tp in range(2, min(size, 64) + 1) if size % tp == 0]
    return f"expected one of {', '.join(found)}" if found else "leave --tp out"
