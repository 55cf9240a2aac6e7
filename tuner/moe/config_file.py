"""Reads and writes the files of tuned configs that vLLM and SGLang have for a layer of experts.

Names and search order are the installed package's: its own functions are called, with a stand-in for the device.
"""

from __future__ import annotations

import json
import os
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton

from tuner.errors import KernelError, in_short
from tuner.files import parse_json
from tuner.kernel.config import Config
from tuner.moe import space
from tuner.moe.layer import Layer
from tuner.moe.package import CONFIGS, Package

VARIABLES = {"vllm": "VLLM_TUNED_CONFIG_FOLDER", "sglang": "SGLANG_MOE_CONFIG_DIR"}
"""The environment variable that names the folder in which a package looks for files of its user."""


def path_of(package: Package, layer: Layer, device_name: str, *, down: bool = False) -> Path:
    """Return where a package looks for a layer's file, below the folder that its variable names.

    Args:
        package: whose file.
        layer: the layer on one rank.
        device_name: the GPU's name by its driver ("NVIDIA H200").
        down: the second file, of the down projection, which SGLang alone has.
    """
    functions = _functions(package, device_name, {})
    options = {"down_moe": down} if package.name == "sglang" else {}
    name: str = functions.get_config_file_name(
        layer.experts, _n(package, layer), layer.config_dtype, layer.blocks, **options
    )
    if package.name == "vllm":
        return Path(name)
    return Path("configs") / f"triton_{triton.__version__.replace('.', '_')}" / name


def read(package: Package, layer: Layer, device_name: str, *, down: bool = False) -> dict[int, Config] | None:
    """Return the configs that a package reads for a layer, by M, from its user's file or the one that ships, if any.

    Raises:
        KernelError: its file is broken.
    """
    functions = _functions(package, device_name, os.environ)
    blocks = layer.blocks or (0, 0)
    options = {"down_moe": down} if package.name == "sglang" else {}
    try:
        rows = functions.get_moe_configs(layer.experts, _n(package, layer), layer.config_dtype, *blocks, **options)
        configs = rows and {m: space.config_of(package.name, parameters) for m, parameters in rows.items()}
        if odd := [m for m, config in (configs or {}).items() if "BLOCK_SIZE_M" not in config]:
            raise ValueError(f"its row for M {odd[0]} has no BLOCK_SIZE_M")
        return configs
    except Exception as e:  # the package's function may raise anything on a broken file
        name = path_of(package, layer, device_name, down=down).name
        raise KernelError(
            f"{package.name} {package.version} cannot read its file {name} ({in_short(e)}): mend or remove it, below "
            f"{_folder(package)}"
        ) from e


def nearest(configs: Mapping[int, Config], m: int) -> Config:
    """Return the config that both packages take for M tokens: that of the nearest M, and the first of two as near."""
    return configs[min(configs, key=lambda row_m: abs(row_m - m))]


def dumps(package: str, layer: Layer, configs: Mapping[int, Config], kept: Mapping[str, Any] | None = None) -> str:
    """Return a file's text. vLLM's names its version of Triton; of SGLang's files the folder names it.

    Args:
        package: whose file.
        layer: the layer on one rank.
        configs: the rows, by M.
        kept: rows to keep of the file that was there before, as it has them.
    """
    # vLLM's kernel for groups takes SPLIT_K from the row. int8 without groups gets it too: the file's name is the same.
    more = {"SPLIT_K": 1} if package == "vllm" and layer.dtype in ("int4_w4a16", "int8_w8a16") else {}
    ours: dict[str, Any] = {str(m): _parameters(config) | more for m, config in configs.items()}
    rows = dict(sorted({**(kept or {}), **ours}.items(), key=lambda row: int(row[0])))
    if package == "vllm":
        rows = {"triton_version": triton.__version__, **rows}
    return json.dumps(rows, indent=4) + "\n"


def rows_of(path: Path) -> dict[str, Any]:
    """Return the rows of a file that `dumps` made, by M; none where it is missing or damaged."""
    try:
        rows = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {m: row for m, row in rows.items() if m.isdecimal()} if isinstance(rows, dict) else {}


def _parameters(config: Config) -> dict[str, int]:
    # A row leaves out sizes that differ between the two GEMMs; vLLM then adds its own, which are the same.
    left_out = {name.removeprefix(space.DOWN) for name in config if name.startswith(space.DOWN)}
    return {name: config.integer(name) for name in space.PARAMETERS if name not in left_out}


def _n(package: Package, layer: Layer) -> int:
    """Return the N in a file's name. SGLang counts bytes, and a byte holds two int4 weights."""
    return layer.shard // 2 if package.name == "sglang" and layer.dtype == "int4_w4a16" else layer.shard


def _folder(package: Package) -> str:
    folder = os.environ.get(VARIABLES[package.name])
    return folder or str((package.folder / CONFIGS[package.name]).parent)


def _functions(package: Package, device_name: str, environ: Mapping[str, str]) -> types.SimpleNamespace:
    """Return a package's functions that name and read files; `environ` says where its user's files are."""

    def say_nothing(*_: object, **__: object) -> None: ...

    exact = types.SimpleNamespace(enable_deterministic_inference=False)
    stand_ins = {
        "json": json,
        "os": types.SimpleNamespace(path=os.path, listdir=os.listdir, environ=environ),
        "triton": types.SimpleNamespace(__version__=triton.__version__),
        "logger": types.SimpleNamespace(
            info=say_nothing, warning=say_nothing, info_once=say_nothing, warning_once=say_nothing
        ),
        "envs": types.SimpleNamespace(
            VLLM_BATCH_INVARIANT=False, VLLM_TUNED_CONFIG_FOLDER=environ.get(VARIABLES["vllm"])
        ),
        "get_device_name_as_file_name": lambda: re.sub(r"[\s/]+", "_", device_name),
        "get_device_name": lambda: device_name,
        "get_exec": lambda: types.SimpleNamespace(deterministic=exact),
    }
    return package.part(CONFIGS[package.name], ("get_config_file_name", "get_moe_configs"), stand_ins)
