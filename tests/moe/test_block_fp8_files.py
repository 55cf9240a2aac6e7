"""What docs say of vLLM's and SGLang's newest versions: where files of block-scaled fp8 lie, and what reads them."""

from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path
from unittest.mock import MagicMock

import packages
import pytest

from tuner.moe.package import part
from tuner.tables.vllm import KEYS, ConfigFile

DOCS = Path(__file__).parents[2] / "docs"
MODULES = {
    "vllm": "vllm/model_executor/layers/quantization/utils/fp8_utils.py",
    "sglang": "sglang/kernels/ops/gemm/fp8_kernel.py",
}
KERNELS = {"vllm": "_w8a8_triton_block_scaled_mm", "sglang": "_w8a8_block_fp8_matmul"}
OPTIONS = {
    "vllm": ("vllm/engine/arg_utils.py", "--linear-backend", "--moe-backend"),
    "sglang": ("sglang/srt/arg_groups/fields/exec_.py", "--fp8-gemm-backend", "--moe-runner-backend"),
}
ROWS = {m: dict.fromkeys(KEYS[:6], m) | {"BLOCK_SIZE_K": 128} for m in (16, 64)}


@pytest.mark.parametrize("name", packages.EXPERTS)
def test_an_exported_file_is_read_from_the_folder_that_docs_name_and_its_keys_are_the_kernels(name, tmp_path):
    module = packages.folder(name) / MODULES[name]
    assert f"`{Path(MODULES[name]).parent}/configs`" in (DOCS / "tables.md").read_text()
    assert list((module.parent / "configs").glob("N=*,K=*,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=*.json"))
    copied = shutil.copy(module, tmp_path)
    stand_ins = {
        "json": json,
        "os": os,
        "logger": MagicMock(),
        "log_info_on_rank0": MagicMock(),
        "_is_cuda": True,
        "torch": MagicMock(**{"_dynamo.is_compiling.return_value": False}),
        "get_device_name": lambda: "NVIDIA H200",
        "get_device_name_as_file_name": lambda: "NVIDIA_H200",
    }
    reads = "get_w8a8_block_fp8_configs"
    read = getattr(part(Path(copied), (reads,), stand_ins, f"{name} {packages.VERSIONS[name]}"), reads)
    (tmp_path / "configs").mkdir()
    ConfigFile("NVIDIA H200", 2112, 7168, ROWS).write(tmp_path / "configs", name)
    assert read(2112, 7168, 128, 128) == ROWS
    tree = ast.parse(module.read_text())
    (kernel,) = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == KERNELS[name])
    assert {*KEYS[:4]} <= {argument.arg for argument in kernel.args.args}


@pytest.mark.parametrize("name", packages.EXPERTS)
def test_the_options_of_servers_that_docs_name_exist(name):
    module, linear, experts = OPTIONS[name]
    text = (packages.folder(name) / module).read_text()
    for option, page in ((linear, "tables.md"), (experts, "moe.md")):
        field = option[2:].replace("-", "_")  # SGLang makes options of most fields' names
        assert f'"{option}"' in text or f"    {field}: A[" in text
        assert f"`{option} triton`" in (DOCS / page).read_text()
