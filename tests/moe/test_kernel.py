"""Both packages' kernels compute what their problems say: on the interpreter in every dtype, and compiled for sm_90."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import packages
import pytest

from tuner.hardware.device import KNOWN

HERE = Path(__file__).parent / "programs"
SLACK_BYTES = 2048
"""What block scales and a layout's conversion take beside the pipeline."""


def run_program(name: str, *arguments: str, **env: str) -> list[dict]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | env
    child = subprocess.run(
        [sys.executable, HERE / name, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout)


@pytest.mark.long
def test_every_dtype_matches_float64_on_the_interpreter():
    """vLLM's kernel; a whole run of `tuner moe` compares SGLang's with the same reference (test_command.py)."""
    found = run_program("numerics.py", "vllm", TRITON_INTERPRET="1")
    assert len(found) >= 8
    for one in found:
        assert one["error"] < 0.2, one["case"]
        assert one["spoilt"] > 1, one["case"]


@pytest.mark.long
@pytest.mark.parametrize("package", packages.EXPERTS)
def test_every_dtype_compiles_for_hopper_within_the_shared_memory_that_is_predicted(package, tmp_path):
    found = run_program("compiled.py", package, TRITON_CACHE_DIR=str(tmp_path))
    assert len(found) >= 8
    for one in found:
        assert one["wgmma"], one["case"]
        limit = min(one["predicted_bytes"] + SLACK_BYTES, KNOWN["sm_90"].shared_bytes)
        assert one["shared_bytes"] <= limit, one["case"]
