"""The spaces of the kernels of `gated_linear` for Hopper, and which of them is the default."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("triton", reason="the installed kernels need torch and Triton")

from tuner import Problem
from tuner.hardware.device import MODELS, triton_version
from tuner.kernel import registry
from tuner.kernel.config import Config

WARP_SPECIALIZED, ANY_HEIGHT = (
    registry.find("gated_linear", name) for name in ("gated_warp_specialized", "gated_any_height")
)
H100 = next(device for device in MODELS if device.name == "NVIDIA H100 80GB HBM3")


def layer(m, n=17408, k=5120):
    return Problem(m, n, k, dtype="bf16", layout="nt", epilogue="silu", op="gated_linear")


@pytest.mark.parametrize("m", [64, 257, 513, 1025, 1184, 4096])
def test_no_fewer_rows_of_tiles_a_group_would_make_as_few_groups(m):
    """So the last group, which has what is left, has as many as it can."""
    seen = set()
    for config in WARP_SPECIALIZED.space(layer(m), H100).configs():
        rows, group = -(-m // config["BLOCK_SIZE_M"]), config["GROUP_SIZE_M"]
        assert group == 1 or -(-rows // (group - 1)) > -(-rows // group), config
        seen.add(group)
    assert m == 64 or max(seen) > 1


@pytest.mark.parametrize("m", [513, 656, 928, 1025, 1184, 1536, 1856, 2368])
def test_few_programs_of_small_tiles_ask_for_the_same_rows_of_a_weight(m):
    for n, k in ((17408, 5120), (14336, 4096), (3584, 8192)):
        config = WARP_SPECIALIZED.default_config(layer(m, n, k), H100)
        assert config["BLOCK_SIZE_M"] * config["BLOCK_SIZE_N"] >= 128 * 256 or config["GROUP_SIZE_M"] <= 8


tiles_of_any_height = pytest.mark.skipif(
    not triton_version().startswith("3.7."), reason="tiles of any height run under Triton 3.7 alone"
)


@tiles_of_any_height
@pytest.mark.parametrize("m", [65, 66, 127, 128, 129, 200, 208, 209, 255, 256])
def test_tiles_of_few_rows_have_equal_shares_of_them(m):
    for config in ANY_HEIGHT.space(layer(m), H100).configs():
        down = -(-m // config["BLOCK_SIZE_M"])
        assert config["BLOCK_SIZE_M"] in {max(64, -(-m // (8 * down)) * 8), 64}, config
        assert (config["num_ctas"], "SHARE_B" in config) in {(4, False), (2, True)} if "num_ctas" in config else True
        assert not ("SHARE_B" in config and down % 2), "each block of a pair has rows"


@tiles_of_any_height
def test_no_config_of_few_rows_leaves_the_device_idle_where_others_do_not():
    sizes = {(m, n) for m in (65, 100, 129, 250) for n in (64, 512, 3072, 7168, 28672)}
    for m, n in sizes:
        counts = [
            -(-m // config["BLOCK_SIZE_M"]) * -(-2 * n // config["BLOCK_SIZE_N"])
            for config in ANY_HEIGHT.space(layer(m, n), H100).configs()
        ]
        assert min(counts) >= min(0.7 * H100.sm_count, max(counts)), (m, n)


@tiles_of_any_height
def test_more_rows_are_taken_in_turn_by_tiles_that_the_model_says_are_best():
    for m in (257, 592, 1537, 4096, 100_000):
        configs = ANY_HEIGHT.space(layer(m), H100).configs()
        assert {(config["BLOCK_SIZE_N"], config["num_warps"]) for config in configs} == {(128, 8)}
        assert len({config["BLOCK_SIZE_M"] for config in configs}) == 3
        default = registry.default_config(layer(m), H100)
        assert default in configs
        best = min(ANY_HEIGHT.estimate_us(config, layer(m), H100) for config in configs)
        assert ANY_HEIGHT.estimate_us(default, layer(m), H100) == best
        wide = -(-m // default["BLOCK_SIZE_M"]) >= 13
        assert default["GROUP_SIZE_M"] == (12 if wide else 2), "wide groups are for many tiles along x"


@tiles_of_any_height
@pytest.mark.parametrize(
    ("m", "n", "kernel"),
    [
        (64, 14336, "gated_pointer"),
        (65, 14336, "gated_any_height"),
        (129, 7168, "gated_any_height"),
        (4096, 14336, "gated_any_height"),
        (129, 896, "gated_warp_specialized"),
        (300, 512, "gated_warp_specialized"),
        (2000, 512, "gated_any_height"),
    ],
)
def test_it_is_the_default_where_its_smallest_tiles_keep_the_device_busy(m, n, kernel):
    assert registry.default_config(layer(m, n, 4096), H100).kernel == kernel


@tiles_of_any_height
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"BLOCK_SIZE_M": 68}, "BLOCK_SIZE_M is 68"),
        ({"BLOCK_SIZE_M": 216}, "BLOCK_SIZE_M is 216"),
        ({"BLOCK_SIZE_N": 256, "num_warps": 4}, "256 columns for 4 warps"),
        ({"BLOCK_SIZE_K": 128}, "rows of 128 bytes"),
        ({"num_stages": 1}, "2 stages at least"),
        ({"num_stages": 9}, "shared memory"),
        ({"num_ctas": 8}, "clusters of 8"),
        ({"num_ctas": 2}, "clusters of 2"),
        ({"num_ctas": 4, "num_warps": 8}, "take tiles in turn: the kernel has none"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused_with_its_reason(changes, reason):
    problem = layer(129, 7168, 8192)
    config = ANY_HEIGHT.default_config(problem, H100).replace(BLOCK_SIZE_N=128, num_warps=4)
    config = config.replace(num_ctas=4, num_stages=4)
    rejected = ANY_HEIGHT.space(problem, H100).rejection(config.replace(**changes), fatal_only=True)
    assert rejected is not None
    assert reason in str(rejected)
    assert ANY_HEIGHT.space(problem, H100).rejection(config, fatal_only=True) is None


@tiles_of_any_height
@pytest.mark.parametrize(
    ("m", "multiprocessors", "changes", "is_tried"),
    [
        (129, 132, {"num_ctas": 4}, True),
        (129, 114, {"num_ctas": 4}, False),  # 28 clusters, 25 at once
        (256, 132, {"num_ctas": 4, "BLOCK_SIZE_M": 128}, False),  # two tiles along x
        (256, 132, {"num_ctas": 2, "SHARE_B": True, "BLOCK_SIZE_M": 128}, True),
        (129, 132, {"num_ctas": 2, "SHARE_B": True}, False),  # one
    ],
    ids=str,
)
def test_no_search_tries_clusters_that_wait_or_lack_a_tile_and_no_other_device_lends_them(
    m, multiprocessors, changes, is_tried
):
    problem, here = layer(m, 7168, 4096), dataclasses.replace(H100, sm_count=multiprocessors)
    config = Config(
        ANY_HEIGHT.name,
        BLOCK_SIZE_M=136,
        BLOCK_SIZE_N=128,
        BLOCK_SIZE_K=64,
        num_warps=4,
        num_stages=4,
        GROUP_SIZE_M=2,
        launch_pdl=True,
    ).replace(**changes)
    space = ANY_HEIGHT.space(problem, here)
    assert space.rejection(config, fatal_only=True) is None
    assert ("worth a cluster" in str(space.rejection(config))) is not is_tried
    assert not any("worth a cluster" in str(space.rejection(one)) for one in space.configs())
