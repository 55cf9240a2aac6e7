"""The experts of a Hugging Face model, from its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.errors import ModelError
from tuner.models import config as configs
from tuner.problem import dtype as dtypes

_NAMES = {
    "experts": ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
    "hidden": ("hidden_size",),
    "intermediate": ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"),
}
"""What configs of transformers call each size, the most specific first."""


def sizes(name: str) -> dict[str, int]:
    """Return the sizes of a model's layers of experts, as `Layer` names them.

    Args:
        name: see `tuner.models.config.load`.

    Raises:
        ModelError: the config cannot be read, or its model has no experts.
    """
    config = configs.load(name).get_text_config()
    found = {size: _first(config, names) for size, names in _NAMES.items()}
    if lacking := [size for size, value in found.items() if value is None]:
        tried = ", ".join(_NAMES[lacking[0]])
        raise ModelError(
            f"{name}: a {config.model_type} model has no experts that are known here (none of {tried}): type "
            "--experts, --hidden, --intermediate and --topk"
        )
    return {size: value for size, value in found.items() if value is not None}


def quantization(name: str) -> dict[str, Any]:
    """Return the dtype and the block shape of a model's weights, as `Layer` names them.

    Raises:
        ModelError: the config cannot be read, or its weights are quantized in a way that is not known here.
    """
    config = configs.load(name)
    said = configs.quantization(config)
    method = said.get("quant_method")
    if method in ("gptq", "awq"):
        return _of_groups(name, said)
    if said and method != "fp8":
        raise ModelError(
            f"{name}: quantized by {method or 'a method without a name'}: expected fp8, gptq or awq: type what the "
            "server multiplies, such as --dtype bf16, --dtype fp8_w8a8 or --dtype int4_w4a16 --group-size 128"
        )
    precision = configs.take_precision(config, None)
    if not said:
        return {"dtype": "fp16" if precision.dtype == "float16" else "bf16"}
    blocks = said.get("weight_block_size")
    return {"dtype": "fp8_w8a8"} | ({"block_shape": tuple(blocks)} if blocks else {})


def typed(name: str, asked: str | None = None) -> str:
    """Return the options of `tuner moe` that say what `quantization` returns, each after a space.

    Args:
        name: see `quantization`.
        asked: the canonical dtype that was asked for instead of the config's; of a config in fp8 its blocks stay.
    """
    try:
        found = quantization(name)
    except ModelError:
        if asked is None:
            return " --dtype DTYPE"
        found = {}
    if asked is not None and not (dtypes.is_fp8(asked) and found.get("dtype") == "fp8_w8a8"):
        found = {"dtype": "fp8_w8a8" if dtypes.is_fp8(asked) else "fp16" if asked == "float16" else "bf16"}
    if found["dtype"] == "bf16":
        return ""
    cells = [f" --dtype {found['dtype']}"]
    cells += [f" --block-shape {','.join(map(str, found['block_shape']))}"] if "block_shape" in found else []
    cells += [f" --group-size {found['group_size']}"] if "group_size" in found else []
    return "".join(cells) + (" --zero-points" if "zero_points" in found else "")


def _of_groups(name: str, said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a config of GPTQ or AWQ says of its groups."""
    bits, size = said.get("bits"), said.get("group_size")
    instead = "to tune other weights, type --dtype int4_w4a16 --group-size 128"
    if bits not in (4, 8):
        raise ModelError(f"{name}: its quantization_config has bits {bits!r}: expected 4 or 8: {instead}")
    if type(size) is not int or size < 1:
        raise ModelError(
            f"{name}: its quantization_config has group_size {size!r}: expected the size of a group of weights with "
            f"one scale, such as 128: {instead}"
        )
    if said.get("desc_act"):
        raise ModelError(
            f"{name}: its quantization_config has desc_act true, and this kernel knows no order of activations: "
            f"expected desc_act false: name another model; {instead}"
        )
    more = {"zero_points": True} if said.get("zero_point") or said.get("sym") is False else {}
    return {"dtype": f"int{bits}_w{bits}a16", "group_size": size, **more}


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if type(value) is int), None)
