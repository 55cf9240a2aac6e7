"""Reads the sizes and the quantization of a Hugging Face model's experts from its config."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tuner.errors import ModelError
from tuner.models import config as configs
from tuner.problem import dtype as dtypes

_NAMES = {
    "experts": ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
    "hidden": ("moe_latent_size", "moe_hidden_size", "hidden_size"),
    "intermediate": ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"),
}
"""The names of each size in configs of transformers, the most specific first."""
OPEN_DTYPE = " --dtype DTYPE"
"""What `quantization_options` returns where people have to choose."""
_FUSED_BY_SGLANG: Mapping[str, int | None] = {
    "BailingMoeV3ForCausalLM": None,
    "DeepseekV3ForCausalLM": 256,
    "Dots3NoteForCausalLM": 256,
    "Glm4MoeForCausalLM": None,
    "Glm4MoeLiteForCausalLM": None,
    "Glm5NextForConditionalGeneration": None,
    "GlmMoeDsaForCausalLM": 256,
    "MiniMaxM3SparseForCausalLM": None,
    "MiniMaxM3SparseForConditionalGeneration": None,
}
"""Architectures whose one shared expert SGLang 0.5.23 by default counts among the routed ones on an NVIDIA GPU, without
expert parallelism, and the only number of routed experts with which it does: shared_experts_fusion_disable_reason."""
_SHARED = ("n_shared_experts", "num_shared_experts")


def sizes(name: str, typed: Collection[str] = ()) -> dict[str, int]:
    """Return the sizes of a model's layers of experts, as `Layer` names them, but those that were typed.

    Args:
        name: see `tuner.models.config.load`.
        typed: their names.

    Raises:
        ModelError: the config cannot be read, its model has no experts, or a size is missing or differs by layer.
    """
    config = configs.load(name).get_text_config()
    asked = [size for size in _NAMES if size not in typed]
    values: dict[str, int] = {}
    for size in asked:
        try:
            value = _first(config, _NAMES[size])
        except (RuntimeError, ValueError) as e:  # the first is transformers' own, of a field in which layers differ
            raise ModelError(
                f"{name}: layers of this {config.model_type} model differ in their experts ({size}): expected one "
                f"size: add {_options([size])} of a layer"
            ) from e
        if value is None:
            has_experts = "experts" in {*typed, *values}
            what = f"experts with a {size}" if has_experts else "experts"
            raise ModelError(
                f"{name}: a {config.model_type} model has no {what} known here (none of {', '.join(_NAMES[size])}): "
                f"add {_options([size] if has_experts else asked)}"
            )
        values[size] = value
    return values


def _options(sizes: Sequence[str]) -> str:
    """The options of `tuner moe` for sizes, as they are typed."""
    *most, last = [f"--{size.replace('_', '')}" for size in sizes]
    return f"{', '.join(most)} and {last}" if most else last


def fused_shared_experts(name: str) -> int:
    """Return how many shared experts SGLang adds to a model's routed ones by default, which its files then count.

    Raises:
        ModelError: the config cannot be read.
    """
    config = configs.load(name)
    text, named = config.get_text_config(), (config.architectures or ("",))[0]
    if named not in _FUSED_BY_SGLANG or _first(text, _SHARED) != 1:
        return 0
    return int(_FUSED_BY_SGLANG[named] in (None, _first(text, _NAMES["experts"])))


def quantization(name: str) -> dict[str, Any]:
    """Return the dtype and the block shape of a model's weights, as `Layer` names them.

    Raises:
        ModelError: the config cannot be read, or its weights are quantized in a way that is not known here.
    """
    config = configs.load(name)
    quantized = configs.quantization(config)
    method = quantized.get("quant_method")
    if method in ("gptq", "awq"):
        return _of_groups(name, quantized)
    if quantized and method != "fp8":
        raise ModelError(
            f"{name}: quantized by {method or 'a method without a name'}: expected fp8, gptq or awq: type what the "
            "server multiplies, such as --dtype bf16, --dtype fp8_w8a8 or --dtype int4_w4a16 --group-size 128"
        )
    precision = configs.take_precision(config, None)
    if not quantized:
        return {"dtype": "fp16" if precision.dtype == "float16" else "bf16"}
    blocks = quantized.get("weight_block_size")
    return {"dtype": "fp8_w8a8"} | ({"block_shape": tuple(blocks)} if blocks else {})


def quantization_options(name: str, asked: str | None = None) -> str:
    """Return what `quantization` returns as options of `tuner moe`, each after a space.

    Args:
        name: see `quantization`.
        asked: the canonical dtype to use instead of the config's; for fp8 the blocks of a config in fp8 are kept.
    """
    try:
        fields = quantization(name)
    except ModelError:
        if asked is None:
            return OPEN_DTYPE
        fields = {}
    if asked is not None and not (dtypes.is_fp8(asked) and fields.get("dtype") == "fp8_w8a8"):
        fields = {"dtype": "fp8_w8a8" if dtypes.is_fp8(asked) else "fp16" if asked == "float16" else "bf16"}
    if fields["dtype"] == "bf16":
        return ""
    cells = [f" --dtype {fields['dtype']}"]
    cells += [f" --block-shape {','.join(map(str, fields['block_shape']))}"] if "block_shape" in fields else []
    cells += [f" --group-size {fields['group_size']}"] if "group_size" in fields else []
    return "".join(cells) + (" --zero-points" if "zero_points" in fields else "")


def _of_groups(name: str, quantized: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dtype and the groups of weights that GPTQ or AWQ quantized."""
    bits, size = quantized.get("bits"), quantized.get("group_size")
    instead = "to tune other weights, type --dtype int4_w4a16 --group-size 128"
    if bits not in (4, 8):
        raise ModelError(f"{name}: its quantization_config has bits {bits!r}: expected 4 or 8: {instead}")
    if type(size) is not int or size < 1:
        raise ModelError(
            f"{name}: its quantization_config has group_size {size!r}: expected the size of a group of weights with "
            f"one scale, such as 128: {instead}"
        )
    if quantized.get("desc_act"):
        raise ModelError(
            f"{name}: its quantization_config has desc_act true, and this kernel knows no order of activations: "
            f"expected desc_act false: name another model; {instead}"
        )
    more = {"zero_points": True} if quantized.get("zero_point") or quantized.get("sym") is False else {}
    return {"dtype": f"int{bits}_w{bits}a16", "group_size": size, **more}


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    """Return the number by the first of these names that a config has; a list has one for each layer.

    Raises:
        ValueError: layers differ.
    """
    for name in names:
        value = getattr(config, name, None)
        numbers: list[Any] = value if isinstance(value, list) and value else [value]
        if all(type(each) is int for each in numbers):
            if min(numbers) < max(numbers):
                raise ValueError(f"{name} is {value}")
            first: int = numbers[0]
            return first
    return None
