"""Builds a Hugging Face model from its config, on the meta device: without weights, network or the model's own code."""

from __future__ import annotations

import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import files
from tuner.errors import ModelError, UsageError, in_short
from tuner.models.products import SCALE_BLOCK
from tuner.problem import dtype as dtypes

_ADVICE = "name the config.json of a Hugging Face model"
_KERNELS = ("causal_conv1d", "fla", "mamba_ssm")
"""Packages whose kernels transformers prefers to its own code where they are installed. They need a GPU and weights."""


def load(name: str) -> Any:
    """Read a config.

    Args:
        name: a JSON file, a folder with a config.json, or the name of a model that is in the local cache.

    Returns:
        The config, as transformers has it.

    Raises:
        UsageError: transformers is not installed.
        ModelError: there is no such config, it is damaged, or its architecture is unknown or needs code of its own.
    """
    try:
        import transformers
    except ImportError as e:
        raise UsageError(f"transformers is not installed ({e}): type pip install 'triton-tuner[models]'") from e
    transformers.utils.logging.set_verbosity_error()
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if path.suffix != ".json" and not path.exists():
        path = _cached(name)
    fields = files.read_json(path, "config of a model", _ADVICE, error=ModelError)
    kind = fields.get("model_type") if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        raise ModelError(f'{name}: no config of a model: expected a "model_type", such as "llama": {_ADVICE}')
    if kind not in transformers.CONFIG_MAPPING:
        if "auto_map" in fields:
            raise ModelError(
                f"{name}: the model type {kind!r} needs code that comes with the model, which is not run here: "
                "run the model under tuner capture --out DIR -- COMMAND"
            )
        raise ModelError(
            f"{name}: transformers {transformers.__version__} does not know the model type {kind!r}: expected one that "
            "it builds itself: type pip install -U transformers, or run the model under tuner capture"
        )
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(fields)
        if has_one_text := _has_one_text_model(config):
            _check(config)
    except Exception as e:  # each config class checks itself and raises whatever it likes
        raise ModelError(f"{name}: a damaged config of a {kind} model ({in_short(e)}): {_ADVICE}") from e
    if not has_one_text:
        parts = ", ".join(config.sub_configs)
        raise ModelError(
            f"{name}: a {kind} model is several in one ({parts}), with more than one of text, and only models with one "
            "are read: run it under tuner capture --out DIR -- COMMAND"
        )
    return config


def _has_one_text_model(config: Any) -> bool:
    """Whether transformers knows which part of a config is the text model's; it does not for MusicGen."""
    try:
        config.get_text_config()
    except ValueError:
        return False
    return True


def _check(config: Any) -> None:
    """Raise ValueError where a field that is read here has a wrong value; transformers checks none of these fields."""
    quantized = quantization(config)
    if (blocks := quantized.get("weight_block_size")) is not None:
        is_pair = isinstance(blocks, (list, tuple)) and [type(each) for each in blocks] == [int, int]
        if not is_pair or min(blocks) < 1:
            raise ValueError(f"weight_block_size is {blocks!r:.60}, not two sizes such as [128, 128]")
    names = ("architectures", getattr(config, "architectures", None))
    for field, words in (names, ("modules_to_not_convert", quantized.get("modules_to_not_convert"))):
        if words and not (isinstance(words, (list, tuple)) and all(isinstance(each, str) for each in words)):
            raise ValueError(f"{field} is {words!r:.60}, not a list of names")


def quantization(config: Any) -> dict[str, Any]:
    """Return the quantization of a config or of its text model; empty where the weights are not quantized.

    Args:
        config: see `load`.
    """
    fields = (getattr(each, "quantization_config", None) for each in (config, config.get_text_config()))
    quantized: Any = next(filter(None, fields), {})
    return quantized if isinstance(quantized, dict) else dict(quantized.to_dict())


def _cached(name: str) -> Path:
    """The path of a config in Hugging Face's local cache, in the model's default revision."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        path = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        path = None
    if not isinstance(path, (str, os.PathLike)):
        raise ModelError(
            f"{name!r} is no file and not in the local cache of models: expected a config.json, or a name in it: type "
            f"{shlex.join(['hf', 'download', name, 'config.json'])}"
        )
    return Path(path)


def build(config: Any, dtype: str) -> Any:
    """Build a config's model on the meta device, in evaluation mode.

    What transformers imports for it keeps to torch's operators for the rest of the process.

    Args:
        config: see `load`.
        dtype: torch's name of the weights' dtype.

    Raises:
        ModelError: transformers cannot build it.
    """
    import torch
    import transformers

    classes: Any = (getattr(transformers, name, None) for name in getattr(config, "architectures", None) or ())
    autos = (
        (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.AutoModelForCausalLM),
        (transformers.MODEL_MAPPING, transformers.AutoModel),
    )
    failures = []
    with torch.device("meta"), warnings.catch_warnings(), _without_kernels():
        warnings.simplefilter("ignore")
        makers: list[Any] = [each._from_config for each in classes if hasattr(each, "_from_config")]
        makers += [auto.from_config for known, auto in autos if type(config) in known]
        for make in makers:
            try:
                return make(config, dtype=dtypes.to_torch(dtype)).eval()
            except Exception as e:  # noqa: BLE001  an architecture may raise anything; the next class may work
                failures.append(e)
    if not failures:
        raise ModelError(f"transformers builds no model of {config.model_type!r} by itself: {_ADVICE}")
    advice = "install what it needs" if isinstance(failures[0], ImportError) else _ADVICE
    raise ModelError(f"transformers cannot build a {config.model_type} model ({in_short(failures[0])}): {advice}")


@contextmanager
def _without_kernels() -> Iterator[None]:
    """Let no package of kernels be imported inside the block."""
    imported = {name: sys.modules.get(name) for name in _KERNELS}
    sys.modules.update(dict.fromkeys(_KERNELS))  # type: ignore[arg-type]  # None is how Python marks such a module
    try:
        yield
    finally:
        for name, module in imported.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


@dataclass(frozen=True, slots=True)
class Precision:
    """What a model's linear layers compute with.

    Attributes:
        dtype: torch's name of the dtype of weights that are not quantized.
        scaling: how the e4m3 operands of quantized linear layers are scaled; None where none are quantized.
        skipped: parts of the names of linear layers that are not quantized.
        remark: a message on what differs from the config; None where nothing does.
    """

    dtype: str
    scaling: str | None = None
    skipped: tuple[str, ...] = ()
    remark: str | None = None


def take_precision(config: Any, asked: str | None) -> Precision:
    """Return the precision that a config and `--dtype` ask for, and remove the quantization from the config.

    Nothing is quantized here, since no weights are loaded.

    Args:
        config: see `load`.
        asked: the canonical dtype of linear layers; None for the config's.
    """
    quantized, text = quantization(config), config.get_text_config()
    for each in (config, text):
        vars(each).pop("quantization_config", None)
    name = str(getattr(text, "dtype", None) or getattr(config, "dtype", None)).removeprefix("torch.")
    usual = name if name in ("float32", "float16") else "bfloat16"
    method = quantized.get("quant_method")
    if asked is not None and not dtypes.is_fp8(asked):
        return Precision(asked)
    if asked is None and method != "fp8":
        remark = f"quantized by {method}, taken as {usual}: --dtype e4m3 is for fp8" if method else None
        return Precision(usual, remark=remark)
    blocks = tuple(quantized.get("weight_block_size") or ())
    scaling = "block" if blocks else "scalar" if method == "fp8" else "row"
    remark = None
    if blocks and blocks != (SCALE_BLOCK, SCALE_BLOCK):
        remark = f"its scales are of blocks of {blocks[0]},{blocks[1]}: taken as of {SCALE_BLOCK},{SCALE_BLOCK}"
    return Precision(usual, scaling, tuple(quantized.get("modules_to_not_convert") or ()), remark)
