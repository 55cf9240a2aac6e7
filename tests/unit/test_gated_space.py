"""The space of `gated_warp_specialized`: groups of rows of tiles that share what they read of both weights."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="the installed kernels need torch and Triton")

from tuner import Problem
from tuner.hardware.device import MODELS
from tuner.kernel import registry

H100 = next(device for device in MODELS if device.name == "NVIDIA H100 80GB HBM3")


def layer(m, n=17408, k=5120):
    return Problem(m, n, k, dtype="bf16", layout="nt", epilogue="silu", op="gated_linear")


@pytest.mark.parametrize("m", [64, 257, 513, 1025, 1184, 4096])
def test_no_fewer_rows_of_tiles_a_group_would_make_as_few_groups(m):
    """So the last group, which has what is left, has as many as it can."""
    seen = set()
    for config in registry.find("gated_linear", "gated_warp_specialized").space(layer(m), H100).configs():
        rows, group = -(-m // config["BLOCK_SIZE_M"]), config["GROUP_SIZE_M"]
        assert group == 1 or -(-rows // (group - 1)) > -(-rows // group), config
        seen.add(group)
    assert m == 64 or max(seen) > 1


@pytest.mark.parametrize("m", [513, 656, 928, 1025, 1184, 1536, 1856, 2368])
def test_few_programs_of_small_tiles_ask_for_the_same_rows_of_a_weight(m):
    for n, k in ((17408, 5120), (14336, 4096), (3584, 8192)):
        config = registry.default_config(layer(m, n, k), H100)
        assert config["BLOCK_SIZE_M"] * config["BLOCK_SIZE_N"] >= 128 * 256 or config["GROUP_SIZE_M"] <= 8
