"""What `warp_specialized` serves, the configs that it offers and those that it refuses. Without a GPU."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="Triton is not installed: no kernel is registered")

from tuner import Config, Problem
from tuner.hardware import device as devices
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernels.cost import products
from tuner.kernels.cost.tile import Sides
from tuner.kernels.gemm.hopper import register_operand, resources

H200 = KNOWN["sm_90"]
SPEC = registry.find("matmul", "warp_specialized")

UNSERVED = [
    (Problem(4096, 4096, 4096, dtype="bf16"), "interpreter", "no interpreter"),
    (Problem(4096, 4096, 4096, dtype="bf16"), "sm_100", "Hopper"),
    (Problem(4096, 4096, 4096, dtype="bf16"), "sm_80", "Hopper"),
    (Problem(4096, 4095, 4096, dtype="bf16"), "sm_90", "not aligned"),
    (Problem(4096, 4096, 4096, dtype="fp32"), "sm_90", "float32"),
    (Problem(4096, 4096, 4096, dtype="fp32", precision="tf32x3"), "sm_90", "tf32x3"),
    (Problem(4096, 4096, 4096, dtype="e4m3", layout="nn"), "sm_90", "along K"),
    (Problem(4096, 4096, 4096, dtype="fp32", precision="tf32", layout="tn"), "sm_90", "along K"),
    (Problem(32, 4096, 4096, dtype="fp32", precision="tf32", layout="tt"), "sm_90", "M is 32"),
    (Problem(512, 4096, 4096, dtype="fp32", precision="tf32", layout="nn", invariant=True), "sm_90", "registers"),
    (Problem(4096, 4096, 16, dtype="bf16"), "sm_90", "K is 16"),
    (Problem(4096, 4096, 64, dtype="e4m3", layout="nt", scaling="block"), "sm_90", "K is 64"),
    (Problem(4096, 32, 4096, dtype="bf16"), "sm_90", "N is 32"),
]


@pytest.mark.parametrize(("problem", "arch", "reason"), UNSERVED, ids=str)
def test_what_it_cannot_do_is_said_in_a_sentence(problem, arch, reason):
    said = SPEC.supports(problem, INTERPRETER if arch == "interpreter" else KNOWN[arch])
    assert said is not None
    assert reason in said


KINDS = [
    {"dtype": "bf16", "layout": "nt"},
    {"dtype": "fp16", "layout": "nn", "out_dtype": "fp32"},
    {"dtype": "bf16", "layout": "tt"},
    {"dtype": "e4m3", "layout": "nt", "out_dtype": "fp32"},
    {"dtype": "e4m3", "layout": "nt", "scaling": "block"},
    {"dtype": "int8", "layout": "nt", "scaling": "row"},
    {"dtype": "fp32", "layout": "nt", "precision": "tf32"},
    {"dtype": "fp32", "layout": "nn", "precision": "tf32"},
    {"dtype": "fp32", "layout": "tt", "precision": "tf32"},
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()))
def test_its_default_is_a_config_of_its_space_wherever_it_serves(kind):
    served = 0
    for m, n, k in itertools.product((1, 48, 136, 4096), (64, 208, 4096), (16, 64, 96, 4096)):
        problem = Problem(m, n, k, **kind)
        if SPEC.supports(problem, H200) is None:
            served += 1
            space = SPEC.space(problem, H200)
            assert space.rejection(SPEC.default_config(problem, H200)) is None, problem
    assert served > 10


def test_two_widths_are_refused_where_columns_of_one_part_would_belong_to_two_scales():
    blocks = Problem(4096, 4096, 4096, dtype="e4m3", layout="nt", scaling="block")
    rows = Problem(4096, 4096, 4096, dtype="e4m3", layout="nt", scaling="row")
    parameters = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_N_REST": 64, "BLOCK_SIZE_K": 128}
    config = Config(SPEC.name, **parameters, GROUP_SIZE_M=1, EPILOGUE_PARTS=1, SWAP_AB=False, num_stages=4, num_warps=8)
    assert "two scales" in SPEC.space(blocks, H200).rejection(config, fatal_only=True)
    assert SPEC.space(rows, H200).rejection(config, fatal_only=True) is None


def test_few_rows_of_a_are_seen_as_few_columns():
    problem = Problem(16, 4096, 4096, dtype="bf16", layout="nt")
    configs = SPEC.space(problem, H200).configs()
    assert configs
    for config in configs:
        inner, shown = resources.as_computed(config, problem)
        assert config["SWAP_AB"]
        assert (shown.m, shown.n) == (4096, 16)
        assert inner["BLOCK_SIZE_M"] == config["BLOCK_SIZE_N"] >= 64


TF32 = {"dtype": "fp32", "precision": "tf32"}


@pytest.mark.parametrize("shape", [(16, 4096, 4096), (300, 1000, 1024), (8192, 8192, 8192)], ids=str)
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_an_operand_of_32_bits_that_does_not_run_along_k_is_the_first_one_of_the_products(layout, shape):
    problem = Problem(*shape, layout=layout, **TF32)
    if SPEC.supports(problem, H200):
        assert (layout, shape[0]) == ("tt", 16)
        return
    configs = SPEC.space(problem, H200).configs()
    assert configs
    for config in configs:
        assert config["SWAP_AB"] == (layout == "nn")
        assert resources.as_computed(config, problem)[1].layout == "tt"
        assert "num_ctas" not in config


def test_what_registers_cannot_feed_is_refused():
    space = SPEC.space(Problem(4096, 4096, 4096, layout="nn", **TF32), H200)
    config = PLAIN.replace(SWAP_AB=True, BLOCK_SIZE_K=32, BLOCK_SIZE_M=256, EPILOGUE_PARTS=4, num_stages=3)
    assert space.rejection(config) is None
    assert "SWAP_AB" in space.rejection(config.replace(SWAP_AB=False), fatal_only=True)
    assert "clusters" in space.rejection(config.replace(num_ctas=2), fatal_only=True)
    tall = config.replace(BLOCK_SIZE_M=128, BLOCK_SIZE_N=256, BLOCK_SIZE_N_REST=64, BLOCK_SIZE_K=16, EPILOGUE_PARTS=2)
    assert "208 sums and elements of A, 200 fit" in space.rejection(tall, fatal_only=True)


def test_the_cost_model_knows_which_tiles_load_registers_ahead():
    for problem in (Problem(200, 4096, 4096, layout="nn", **TF32), Problem(4096, 4096, 4096, layout="tt", **TF32)):
        found = set()
        for config in SPEC.space(problem, H200).configs():
            inner, _ = resources.as_computed(config, problem)
            fixed = SimpleNamespace(**inner, WARPGROUPS=resources.warpgroups(config))
            ahead = products.loads_ahead(Sides.of(inner))
            assert register_operand.loads_ahead.fn(fixed) == ahead
            found.add(ahead)
            part = register_operand.part_of_step.fn(fixed)
            assert inner.integer("BLOCK_SIZE_K") % part == 0
            assert part * inner.integer("BLOCK_SIZE_N") >= 2048 or part == inner["BLOCK_SIZE_K"]
        assert found == {True, False}


def test_two_programs_reside_only_where_both_rings_fit():
    problem = Problem(4096, 4096, 4096, dtype="bf16", layout="nt")
    found = {resources.resident(config, problem, H200) for config in SPEC.space(problem, H200).configs()}
    assert found <= {1, 2}
    for config in SPEC.space(Problem(512, 4096, 4096, dtype="bf16", layout="nt"), H200).configs():
        if resources.resident(config, problem, H200) == 2:
            assert 2 * resources.shared_bytes(config, problem, H200) < H200.shared_bytes


PLAIN = Config(
    SPEC.name,
    BLOCK_SIZE_M=128,
    BLOCK_SIZE_N=128,
    BLOCK_SIZE_N_REST=0,
    BLOCK_SIZE_K=64,
    EPILOGUE_PARTS=1,
    GROUP_SIZE_M=1,
    SWAP_AB=False,
    launch_pdl=True,
    num_stages=4,
    num_warps=8,
)


@pytest.mark.parametrize(("running", "offered"), [("3.6.0", False), ("3.7.1", True), ("3.9.0", False), ("", False)])
def test_clusters_are_tried_only_under_the_triton_that_ran_them(running, offered, monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: running)
    space = SPEC.space(Problem(4096, 4096, 4096, dtype="bf16", layout="nt"), H200)
    assert space.rejection(PLAIN, fatal_only=True) is None
    pair = PLAIN.replace(num_ctas=2)
    ways = [pair, pair.replace(SHARE_B=True)]
    assert space.refinements(PLAIN) == (ways if offered else [])
    for one, other in (ways, ways[::-1]):
        assert space.refinements(one) == ([other] if offered else [])
    reason = space.rejection(pair, fatal_only=True)
    assert reason is None if offered else f"Triton {running}" in reason


@pytest.mark.parametrize(
    ("n", "ctas", "reason"),
    [(384, 2, None), (384, 4, "3 columns of tiles for 4 blocks"), (4096, 4, "doubles the time"), (4096, 2, None)],
)
def test_every_block_of_a_cluster_has_a_tile_and_a_multiprocessor(n, ctas, reason, monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: "3.7.1")
    space = SPEC.space(Problem(4096, n, 4096, dtype="bf16", layout="nt"), H200)
    said = space.rejection(PLAIN.replace(num_ctas=ctas))
    assert said is None if reason is None else reason in said
    assert "expected 2, 4 or 8" in space.rejection(PLAIN.replace(num_ctas=16), fatal_only=True)


def test_blocks_that_share_b_lie_along_m_and_in_a_cluster(monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: "3.7.1")
    config = PLAIN.replace(num_ctas=2, SHARE_B=True)
    one, two = (SPEC.space(Problem(m, 4096, 4096, dtype="bf16", layout="nt"), H200) for m in (128, 136))
    assert "1 rows of tiles for 2 blocks" in one.rejection(config)
    assert two.rejection(config) is None
    assert "without num_ctas" in two.rejection(PLAIN.replace(SHARE_B=True), fatal_only=True)
    assert "expected true, or none" in two.rejection(config.replace(SHARE_B=False), fatal_only=True)


@pytest.mark.parametrize(("m", "sizes"), [(64, {1, 4, 8}), (128, {1, 4, 8}), (136, {1})])
def test_larger_clusters_are_tried_for_few_rows_that_fill_the_device_once(m, sizes, monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: "3.7.1")
    problem = Problem(m, 7168, 8192, dtype="bf16", layout="nt")
    configs = SPEC.space(problem, H200).configs()
    assert {config.get("num_ctas", 1) for config in configs} == sizes
    assert not any(config["SWAP_AB"] for config in configs if "num_ctas" in config)
    assert SPEC.default_config(problem, H200).get("num_ctas", 1) in sizes


@pytest.mark.parametrize(("running", "pairs"), [("3.6.0", False), ("3.7.1", True)])
def test_rows_that_tma_reads_slowly_are_tried_in_pairs_that_share_the_larger_side(running, pairs, monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: running)
    problem = Problem(3000, 3000, 3000, dtype="bf16", layout="nt")
    clustered = [config for config in SPEC.space(problem, H200).configs() if "num_ctas" in config]
    assert bool(clustered) == pairs
    for config in clustered:
        assert config["num_ctas"] == 2
        assert config.get("SHARE_B", False) == (resources.width(config) > config["BLOCK_SIZE_M"])
    assert pairs or "num_ctas" not in SPEC.default_config(problem, H200)
    even = SPEC.space(Problem(3008, 3008, 3008, dtype="bf16", layout="nt"), H200)
    assert not any("num_ctas" in config for config in even.configs())


THREE = PLAIN.replace(BLOCK_SIZE_M=192, BLOCK_SIZE_N_REST=64, EPILOGUE_PARTS=2, num_warps=12)


@pytest.mark.parametrize(("size", "offered"), [(3072, True), (3000, True), (4096, False), (1536, False), (8192, False)])
def test_three_warpgroups_are_tried_where_their_tiles_fill_waves_as_well_as_two(size, offered):
    problem = Problem(size, size, size, dtype="bf16", layout="nt")
    space = SPEC.space(problem, H200)
    three = [config for config in space.configs() if config["num_warps"] == 12]
    assert bool(three) == offered
    assert {(config["BLOCK_SIZE_M"], resources.width(config), config["BLOCK_SIZE_K"]) for config in three} <= {
        (192, 192, 64)
    }
    assert (space.rejection(THREE) is None) == offered
    assert space.rejection(THREE, fatal_only=True) is None
    assert offered or SPEC.default_config(problem, H200)["num_warps"] != 12


@pytest.mark.parametrize(
    "kind", [{"dtype": "fp32", "precision": "tf32"}, {"dtype": "bf16", "out_dtype": "fp32"}], ids=str
)
def test_three_warpgroups_are_not_tried_where_a_wide_output_leaves_them_three_stages(kind):
    problem = Problem(3072, 3072, 3072, layout="nt", **kind)
    assert not any(config["num_warps"] == 12 for config in SPEC.space(problem, H200).configs())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"num_warps": 8}, "96 rows a warpgroup"),
        ({"BLOCK_SIZE_M": 128}, "42.6667 rows a warpgroup"),
        ({"BLOCK_SIZE_M": 256, "num_stages": 2}, "85.3333 rows a warpgroup"),
        ({"BLOCK_SIZE_M": 96}, "96, no power of two"),
        ({"BLOCK_SIZE_N": 192}, "192, no power of two"),
        ({"num_warps": 6}, "6, no power of two"),
        ({"BLOCK_SIZE_N": 256, "EPILOGUE_PARTS": 4, "num_stages": 2}, "160 sums, 96 fit"),
        ({"num_stages": 5}, "shared memory"),
    ],
    ids=str,
)
def test_what_three_warpgroups_cannot_be_is_refused(values, reason):
    space = SPEC.space(Problem(3072, 3072, 3072, dtype="bf16", layout="nt"), H200)
    assert reason in space.rejection(THREE.replace(**values), fatal_only=True)


def test_a_rest_as_wide_as_a_part_goes_out_by_its_buffer_and_leaves_room_for_a_stage():
    problem = Problem(1000, 3000, 2000, dtype="bf16", layout="nt")
    whole = PLAIN.replace(BLOCK_SIZE_N_REST=64)
    parts = whole.replace(EPILOGUE_PARTS=2)
    taken = [resources.shared_bytes(config, problem, H200) for config in (whole, parts)]
    assert taken[0] - taken[1] == 128 * 128 * 2
    deepest = {config["EPILOGUE_PARTS"]: 0 for config in (whole, parts)}
    for config in SPEC.space(problem, H200).configs():
        if config.replace(GROUP_SIZE_M=1, EPILOGUE_PARTS=1, num_stages=4) == whole:
            parted = config.integer("EPILOGUE_PARTS")
            deepest[parted] = max(deepest[parted], config.integer("num_stages"))
    assert deepest == {1: 4, 2: 5}


def test_a_cluster_takes_a_kilobyte_for_its_barriers():
    problem = Problem(4096, 4096, 4096, dtype="bf16", layout="nt")
    taken = [resources.shared_bytes(config, problem, H200) for config in (PLAIN, PLAIN.replace(num_ctas=2))]
    assert taken[1] - taken[0] == 1024
