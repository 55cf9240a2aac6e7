"""The experts of a Hugging Face model, from its config."""

from __future__ import annotations

from typing import Any

from tuner.errors import ModelError
from tuner.models import config as configs

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
    """Return the dtype and the block shape of a model's weights, as `Layer` names them."""
    config = configs.load(name)
    found = getattr(config, "quantization_config", None) or {}
    said = found if isinstance(found, dict) else found.to_dict()
    if said.get("quant_method") in ("gptq", "awq"):
        zero_points = said.get("zero_point") or said.get("sym") is False
        more = {"zero_points": True} if zero_points else {}
        return {"dtype": f"int{said.get('bits')}_w{said.get('bits')}a16", "group_size": said.get("group_size"), **more}
    precision = configs.take_precision(config, None)
    if precision.scaling is None:
        return {"dtype": "fp16" if precision.dtype == "float16" else "bf16"}
    blocks = said.get("weight_block_size")
    return {"dtype": "fp8_w8a8"} | ({"block_shape": tuple(blocks)} if blocks else {})


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if type(value) is int), None)
