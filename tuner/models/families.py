"""Finds the families of GEMMs in a model's forward, what the M of each counts, and how often a step calls it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch

from tuner.errors import ModelError
from tuner.kernels.space.linear_layers import DTYPES
from tuner.models import forward, norm_calls, sharding
from tuner.models.accelerate_attention import attention_layers, merged_input
from tuner.models.accelerate_experts import activation_of, holds_experts, obstacle
from tuner.models.accelerate_mlp import gate_by, gates, holds_mlp
from tuner.models.config import Precision
from tuner.models.forward import WeightProduct
from tuner.models.lines import Extras, Line
from tuner.models.norm_calls import Norms
from tuner.models.products import Product
from tuner.models.residual_form import forms_by_layer, may_add
from tuner.models.sizes import FIXED, SEQUENCES, TOKENS, Sizes
from tuner.problem.gemm_fields import contiguous_aligned
from tuner.problem.merged_parts import MOST_ROWS, PARTS, parts_text

_SHAPES = ((3, 5), (4, 7))
"""The sequences, and the tokens of each, of two runs. No M is a multiple of both counts in both runs."""
_ACTIVATIONS = "products of activations (attention's, rotary embeddings)"


@dataclass(frozen=True, slots=True)
class GemmFamily:
    """Products of a step that differ in nothing but the weights they read.

    Attributes:
        product: what is computed.
        of: what M counts: TOKENS, SEQUENCES (last tokens only, which is how many sequences there are), or FIXED.
        factor: the M of one token or sequence: 1, or for experts how many each token goes to. For FIXED, M itself.
        weights: generic names of the weights ("model.layers.*.mlp.down_proj.weight").
        count: how often a step calls it.
        extras: see `Line`.
        most_m: the largest M for which `accelerate` calls it; None where there is none.
    """

    product: Product
    of: str
    factor: int
    weights: tuple[str, ...]
    count: int
    extras: Extras = ()
    most_m: int | None = None


@dataclass(frozen=True, slots=True)
class ModelGemms:
    """What a model's step multiplies.

    Attributes:
        families: the families, in the order of the forward.
        left_out: by reason, how many products of a step belong to no family.
        whole: generic names of weights that every GPU has in full.
        uncalled: by generic name, how many linear layers a forward of tokens does not call, such as those of images.
        experts: families of `fused_experts` for blocks that `accelerate` runs on it; their products are families too.
        norms: families of `rms_norm` for norms that `accelerate` runs on it.
        mlps: families of `gated_linear` for gated MLPs that `accelerate` runs on it; gate and up are families too.
        merged: families of `merged_linear` for attention that `accelerate` runs on it; q, k and v are families too.
        adding: families of products of one row that `accelerate` has add the residual; without it they are families
            too.
    """

    families: tuple[GemmFamily, ...]
    left_out: dict[str, int] = field(default_factory=dict)
    whole: tuple[str, ...] = ()
    experts: tuple[GemmFamily, ...] = ()
    norms: tuple[GemmFamily, ...] = ()
    mlps: tuple[GemmFamily, ...] = ()
    merged: tuple[GemmFamily, ...] = ()
    adding: tuple[GemmFamily, ...] = ()
    uncalled: dict[str, int] = field(default_factory=dict)

    @property
    def all(self) -> tuple[GemmFamily, ...]:
        """All families."""
        return *self.families, *self.adding, *self.merged, *self.mlps, *self.experts, *self.norms


def find(model: Any, precision: Precision, *, tp: int = 1) -> ModelGemms:
    """Run a model's forward twice on the meta device and return its families.

    Args:
        model: see `config.build`.
        precision: what its linear layers compute with.
        tp: over how many GPUs it is sharded.

    Raises:
        UsageError: `tp` does not divide it.
        ModelError: it cannot be run without weights, or multiplies by none.
    """
    if tp > 1:
        sharding.check(model, tp)
    with norm_calls.counted(model) as normalized:
        products = [forward.products(model, *shape) for shape in _SHAPES]
    runs = [[(each, each.weight) for each in run if each.weight is not None] for run in products]
    if len(runs[0]) != len(runs[1]):
        raise ModelError(
            f"{type(model).__name__} multiplies by other weights where there are more tokens: expected the same ones: "
            "run it under tuner capture --out DIR -- COMMAND"
        )
    quantized = _quantized(model, precision)
    weights: dict[tuple[Product, str, int], list[str]] = {}
    left_out = Counter({_ACTIVATIONS: len(products[0]) - len(runs[0])} if len(products[0]) > len(runs[0]) else {})
    for (one, weight), (other, _) in zip(*runs, strict=True):
        if (kind := _kind(one, other)) is None:
            left_out["products whose M is neither fixed nor proportional to the tokens"] += 1
            continue
        product = sharding.shard(model, one.product, weight, tp) if tp > 1 else one.product
        if weight in quantized:
            product = _as_fp8(product, str(precision.scaling))
        weights.setdefault((product, *kind), []).append(sharding.generic(weight))
    if not weights:
        raise ModelError(f"{type(model).__name__} has no linear layers: expected a model that multiplies by weights")
    families = tuple(GemmFamily(*key, tuple(dict.fromkeys(names)), len(names)) for key, names in weights.items())
    names_of_all = dict.fromkeys(name for each in families for name in each.weights) if tp > 1 else {}
    whole = tuple(name for name in names_of_all if sharding.is_whole(model, name))
    experts, norms = tuple(_experts(model, families)), tuple(_norms(model, normalized, tp))
    mlps, merged = tuple(_mlps(model, weights, tp)), tuple(_merged(model, weights))
    # Of a row that GPUs share each has a part of the sum, to which one of them could add.
    adding = tuple(_adding(model, weights)) if tp == 1 else ()
    uncalled = Counter(map(sharding.generic, forward.uncalled(model, {weight for _, weight in runs[0]})))
    return ModelGemms(families, dict(left_out), whole, experts, norms, mlps, merged, adding, dict(uncalled))


def _by_generic_name(model: Any, holds: Callable[[torch.nn.Module], object]) -> dict[str, list[torch.nn.Module]]:
    """The blocks of a model for which something holds, those of all layers under one name."""
    blocks: dict[str, list[torch.nn.Module]] = {}
    for name, block in model.named_modules():
        if holds(block):
            blocks.setdefault(sharding.generic(name), []).append(block)
    return blocks


def _mlps(model: Any, weights: Mapping[tuple[Product, str, int], Sequence[str]], tp: int) -> Iterator[GemmFamily]:
    """Yield the families of `gated_linear` of a model's gated MLPs, by the generic names of products' weights."""
    blocks, tried = _by_generic_name(model, holds_mlp), gates()
    gated: dict[tuple[Product, str, int], list[str]] = {}
    for name, alike in blocks.items():
        found = {gate_by(tried, block) for block in alike}
        gate = found.pop() if len(found) == 1 else None
        # Where one weight has gate and up and is sharded, no GPU has the rows of up that belong to its rows of gate.
        if gate is None or (tp > 1 and len(gate.layers) == 1):
            continue
        gate_weights = [f"{name}.{layer}.weight" for layer in gate.layers]
        for (product, of, factor), names in weights.items():
            if product.scaling == "none" and all(each in names for each in gate_weights):
                whole = _gated(product, product.n * len(gate_weights) // 2, gate.activation)
                gated.setdefault((whole, of, factor), []).extend([name] * names.count(gate_weights[0]))
    for key, names in gated.items():
        yield GemmFamily(*key, tuple(dict.fromkeys(names)), len(names))


def _merged(model: Any, weights: Mapping[tuple[Product, str, int], Sequence[str]]) -> Iterator[GemmFamily]:
    """Yield the families of `merged_linear` of a model's attention, by the generic names of products' weights."""
    blocks = _by_generic_name(model, attention_layers)
    merged: dict[tuple[Product, Extras], list[str]] = {}
    for name, alike in blocks.items():
        inputs = {merged_input(block) for block in alike}
        found = inputs.pop() if len(inputs) == 1 else None
        if found is None:
            continue
        layers = [f"{name}.{layer}.weight" for layer in found.layers]
        keys = [[key for key, names in weights.items() if layer in names] for layer in layers]
        if any(len(each) != 1 or each[0][1:] != (TOKENS, 1) for each in keys):
            continue
        products = [each[0][0] for each in keys]
        if (product := _as_one(products)) is not None:
            extras: Extras = ((PARTS, parts_text(each.n for each in products)),)
            merged.setdefault((product, extras), []).extend([name] * weights[keys[0][0]].count(layers[0]))
    for (product, extras), names in merged.items():
        yield GemmFamily(product, TOKENS, 1, tuple(dict.fromkeys(names)), len(names), extras, MOST_ROWS)


def _adding(model: Any, weights: Mapping[tuple[Product, str, int], Sequence[str]]) -> Iterator[GemmFamily]:
    """Yield the families of products that add the residual, by the generic names of products' weights."""
    adding: dict[Product, list[str]] = {}
    form_of = forms_by_layer()
    for name, alike in _by_generic_name(model, may_add).items():
        forms = {form_of(layer) for layer in alike}
        form = forms.pop() if len(forms) == 1 else None
        for step in () if form is None else form.steps:
            weight = f"{name}.{step.block}.{step.ending.last}.weight"
            for (product, of, factor), names in weights.items():
                is_plain = product.op == "matmul" and product.scaling == "none" and product.epilogue == "none"
                if weight in names and is_plain and product.a_dtype in DTYPES and (of, factor) == (TOKENS, 1):
                    adding.setdefault(product._replace(epilogue="bias"), []).extend([weight] * names.count(weight))
    for product, names in adding.items():
        if (product, TOKENS, 1) not in weights:  # other layers' family has all rows
            yield GemmFamily(product, TOKENS, 1, tuple(dict.fromkeys(names)), len(names), most_m=1)


def _as_one(products: Sequence[Product]) -> Product | None:
    """The product with all weights of products of one input; None where they differ in more than their columns."""
    first, n = products[0], sum(each.n for each in products)
    kinds = {each._replace(n=n, aligned=True) for each in products}
    if len(kinds) > 1 or first.op != "matmul" or first.scaling != "none" or first.a_dtype not in DTYPES:
        return None
    aligned = contiguous_aligned("merged_linear", (1, n, first.k), (first.a_dtype,) * 3, first.layout)
    return first._replace(op="merged_linear", n=n, aligned=aligned)


def _norms(model: Any, normalized: Mapping[Norms, list[int]], tp: int) -> Iterator[GemmFamily]:
    """Yield the families of a model's norms. GPUs may divide the rows of heads among them; other rows every GPU has."""
    families: dict[tuple[Product, float, str, int], list[str]] = {}
    for (name, product, eps), rows in normalized.items():
        half, heads_of = len(rows) // 2, tp if sharding.divides_heads(model, name) else 1
        for one, other in dict.fromkeys(zip(rows[:half], rows[half:], strict=False)):
            of, factor = _counted(one, other) or (FIXED, 0)
            gpus = heads_of if factor > 1 else 1
            if of != FIXED and factor % gpus == 0:
                key = product, eps, of, factor // gpus
                families.setdefault(key, []).extend([name] * rows[:half].count(one))
    for (product, eps, of, factor), names in families.items():
        yield GemmFamily(product, of, factor, tuple(dict.fromkeys(names)), len(names), (("eps", eps),))


def _gated(product: Product, n: int, activation: str) -> Product:
    """The product of a gated layer of N columns, from its product with gate or with the weight of gate and up."""
    kinds = (product.a_dtype, product.b_dtype, product.out_dtype)
    aligned = contiguous_aligned("gated_linear", (1, n, product.k), kinds, product.layout)
    return product._replace(op="gated_linear", n=n, epilogue=activation, aligned=aligned)


def _experts(model: Any, families: Sequence[GemmFamily]) -> Iterator[GemmFamily]:
    """Yield the families of `fused_experts` of a model's blocks of experts."""
    blocks = _by_generic_name(model, holds_experts)
    for name, (first, *_, last) in _by_block(families).items():
        activations = {activation_of(block) if obstacle(block) is None else None for block in blocks.get(name, ())}
        if len(activations) == 1 and (activation := activations.pop()) is not None:
            both = first.product, last.product
            product = first.product._replace(
                op="fused_experts",
                n=last.product.k,
                epilogue=activation,
                aligned=all(each.aligned for each in both),
            )
            yield GemmFamily(product, TOKENS, 1, (name,), len(blocks[name]), (("top_k", first.factor),))


def _by_block(families: Sequence[GemmFamily]) -> dict[str, list[GemmFamily]]:
    """The products with experts' weights, by the generic name of their block: gate and up first, down last."""
    blocks: dict[str, list[GemmFamily]] = {}
    for each in families:
        if each.product.op == "grouped_mm":
            for weight in each.weights:
                blocks.setdefault(weight.rpartition(".")[0], []).append(each)
    return {name: [*products, products[-1]] for name, products in blocks.items()}


def _kind(one: WeightProduct, other: WeightProduct) -> tuple[str, int] | None:
    """What M counts, and the factor; None where the runs differ in more than M, or M counts something else."""
    if (one.product._replace(aligned=True), one.weight) != (other.product._replace(aligned=True), other.weight):
        return None
    return _counted(one.m, other.m)


def _counted(one: int, other: int) -> tuple[str, int] | None:
    """What the Ms of both runs count, and the factor; None where they count something else."""
    (sequences, length), (others, longer) = _SHAPES
    for of, first, second in ((TOKENS, sequences * length, others * longer), (SEQUENCES, sequences, others)):
        factor = Fraction(one, first)
        if factor == Fraction(other, second) and factor.denominator == 1:
            return of, factor.numerator
    return (FIXED, one) if one == other else None


def _quantized(model: Any, precision: Precision) -> set[str]:
    """The names of the weights that are quantized: of all linear layers but the last, as in checkpoints in fp8."""
    if precision.scaling is None:
        return set()
    last = model.get_output_embeddings()
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and module is not last
        and not any(part in name for part in precision.skipped)
    }


def _as_fp8(product: Product, scaling: str) -> Product:
    """The product with e4m3 operands and the same output dtype; torch has it only for multiples of 16."""
    if product.op != "matmul" or product.n % 16 or product.k % 16:
        return product
    return product._replace(a_dtype="float8_e4m3fn", b_dtype="float8_e4m3fn", scaling=scaling, aligned=True)


def lines(gemms: ModelGemms, sizes: Sizes) -> list[Line]:
    """The lines of a suite."""
    return [
        Line(
            each.product,
            cell,
            int(re.split("[-,]", cell)[0]),
            each.count,
            " ".join(map(_short, each.weights)),
            each.extras,
        )
        for each in gemms.all
        for cell in (sizes if each.most_m is None else sizes.up_to(each.most_m)).cells(each.of, each.factor)
    ]


def moe_commands(gemms: ModelGemms, quantization: str) -> list[str]:
    """The commands that tune vLLM's fused kernel, one for each kind of experts, with the options `quantization`."""
    commands = [
        f"tuner moe --experts {first.product.number} --intermediate {last.product.k} --hidden {first.product.k} "
        f"--topk {first.factor}{quantization} --for vllm --out DIR"
        for first, *_, last in _by_block(gemms.families).values()
    ]
    return list(dict.fromkeys(commands))


def _short(weight: str) -> str:
    """The short name of a layer: "mlp.down_proj"."""
    parts = re.sub(r"\.weight$", "", weight).split(".")
    return ".".join(part for part in parts[-2:] if part != "*")
