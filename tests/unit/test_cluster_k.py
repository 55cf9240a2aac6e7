"""What `cluster_k` serves, the configs that it offers and those that it refuses. Without a GPU."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

import tuner
from tuner import Config, Problem
from tuner.hardware import device as devices
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.hopper import cluster_k_space as spaces
from tuner.kernels.gemm.hopper import cluster_parts, cluster_sizes
from tuner.lookup import match_rules

H200 = KNOWN["sm_90"]
SPEC = registry.find("matmul", "cluster_k")


@pytest.fixture(autouse=True)
def running(monkeypatch):
    """Whatever Triton these tests run under, the one that the kernel is for."""
    monkeypatch.setattr(devices, "triton_version", lambda: "3.7.1")


def linear(m, n, k, **kind):
    return Problem(m, n, k, **({"dtype": "bf16", "layout": "nt"} | kind))


UNSERVED = [
    (linear(32, 1280, 8192), "interpreter", "no interpreter"),
    (linear(32, 1280, 8192), "sm_100", "Hopper"),
    (linear(32, 1280, 8191), "sm_90", "not aligned"),
    (linear(32, 1280, 8192, dtype="int8", scaling="row"), "sm_90", "int8"),
    (linear(32, 1280, 8192, dtype="fp32", precision="tf32x3"), "sm_90", "float32 tf32x3"),
    (linear(32, 1280, 8192, dtype="fp32"), "sm_90", "float32"),
    (linear(64, 1280, 8192, dtype="fp32", precision="tf32", layout="tt"), "sm_90", "along K"),
    (linear(32, 1280, 8192, dtype="e4m3", layout="nn"), "sm_90", "along K"),
    (linear(32, 1280, 8192, dtype="e4m3", scaling="block"), "sm_90", "scaling 'block'"),
    (linear(264, 1280, 8192), "sm_90", "M is 264"),
    (linear(32, 1280, 256), "sm_90", "K is 256"),
    (linear(32, 6144, 4096), "sm_90", "96 tiles"),
]


@pytest.mark.parametrize(("problem", "arch", "reason"), UNSERVED, ids=str)
def test_what_it_cannot_do_is_said_in_a_sentence(problem, arch, reason):
    said = SPEC.supports(problem, INTERPRETER if arch == "interpreter" else KNOWN[arch])
    assert said is not None
    assert reason in said


@pytest.mark.parametrize(("version", "serves"), [("3.6.0", False), ("3.7.1", True), ("3.9.0", False), ("", False)])
def test_it_serves_under_the_triton_that_ran_it_alone(version, serves, monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: version)
    assert (SPEC.supports(linear(32, 1280, 8192), H200) is None) == serves


KINDS = [{}, {"layout": "nn"}, {"layout": "tt", "out_dtype": "fp32"}, {"dtype": "e4m3", "scaling": "row"}]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind.values()) or "plain")
def test_its_default_and_all_it_offers_find_room_at_once_and_leave_no_block_without_work(kind):
    served = 0
    for m, n, k in itertools.product((1, 24, 200), (16, 208, 1280), (512, 1040, 16384)):
        problem = linear(m, n, k, **kind)
        if SPEC.supports(problem, H200) is not None:
            continue
        served += 1
        space = SPEC.space(problem, H200)
        configs, default = space.configs(), SPEC.default_config(problem, H200)
        assert space.rejection(default) is None
        assert len(configs) <= 60
        for config in (default, *configs):
            blocks = config["SPLIT_K"]
            assert spaces.programs(config, problem) <= cluster_sizes.room(blocks, H200)
            assert blocks <= -(-k // config["BLOCK_SIZE_K"]), f"{problem}: {config}"
            assert spaces.reserved_bytes(config) <= cluster_parts.LARGEST_ROOM
    assert served > 10


PLAIN = Config(
    SPEC.name,
    BLOCK_SIZE_M=32,
    BLOCK_SIZE_N=64,
    BLOCK_SIZE_K=128,
    SPLIT_K=4,
    num_stages=4,
    num_warps=4,
    launch_pdl=True,
)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"SPLIT_K": 16}, None),
        ({"SPLIT_K": 3}, "clusters have 2, 4, 8 or 16 blocks"),
        ({"SPLIT_K": 32}, "clusters have 2, 4, 8 or 16 blocks"),
        ({"BLOCK_SIZE_M": 256}, "8 to 128 rows"),
        ({"BLOCK_SIZE_M": 1}, "8 to 128 rows"),
        ({"BLOCK_SIZE_N": 128}, "4 for 64"),
        ({"num_warps": 8}, "4 for 64"),
        ({"BLOCK_SIZE_K": 32}, "rows of 128, 256 or 512 bytes"),
        ({"num_stages": 12}, "a block has"),
        ({"PREFETCH_KIB": 32, "PDL_TRIGGER": 6}, None),
        ({"PREFETCH_KIB": 3}, "power of two"),
        ({"num_ctas": 4}, "no parameter"),
        ({"num_stages": 1}, "2 at least for 16 steps"),
        ({"BLOCK_SIZE_M": 64, "num_stages": 1}, "Triton asks for more than 49152 B"),
    ],
)
def test_a_config_that_cannot_run_is_refused_with_the_reason(changed, reason):
    said = SPEC.space(linear(32, 1280, 8192), H200).rejection(PLAIN.replace(**changed), fatal_only=True)
    assert said is None if reason is None else reason in said


def test_rows_of_an_a_that_is_stored_by_columns_are_16_at_least():
    problem = linear(7, 1280, 8192, layout="tt")
    said = SPEC.space(problem, H200).rejection(PLAIN.replace(BLOCK_SIZE_M=8), fatal_only=True)
    assert "16 to 128 rows" in said
    assert {config["BLOCK_SIZE_M"] for config in SPEC.space(problem, H200).configs()} == {16}


def test_clusters_of_16_are_for_devices_one_of_whose_eight_gpcs_must_hold_them():
    problem = linear(8, 32, 16384)
    for count, largest in ((132, 16), (121, 16), (120, 8), (114, 8)):
        device = dataclasses.replace(H200, sm_count=count)
        configs = SPEC.space(problem, device).configs()
        assert {config["SPLIT_K"] for config in configs} == {largest}
        assert SPEC.default_config(problem, device)["SPLIT_K"] == largest


def test_weights_that_no_prefetch_takes_leave_the_trigger():
    for problem, options in ((linear(32, 1280, 8192), 2), (linear(32, 1280, 8192, layout="nn"), 1)):
        space = SPEC.space(problem, H200)
        for config in space.configs():
            assert len(config.keys() & {*space.options}) == options
            assert len(space.refinements(config)) == (4 if options == 2 else 0)


@pytest.mark.parametrize(("columns", "blocks", "owners"), [(8, 16, 4), (32, 16, 16), (32, 4, 4), (128, 2, 2)])
def test_columns_are_dealt_out_in_pairs_at_least(columns, blocks, owners):
    assert cluster_parts.owners_of(columns, blocks) == owners
    part = cluster_parts.part_bytes(64, columns, blocks)
    assert part >= 64 * columns // owners * 4
    room = cluster_parts.room_bytes(64, columns, blocks)
    assert room % 1024 == 0
    assert room >= blocks * part + 8


@pytest.fixture
def served(tmp_path, make_row, make_table, no_tables):
    """Name a table of an H200 that holds one row of these parts."""

    def name(m, n, k, config):
        version = registry.find("matmul", config.kernel).version
        row = make_row(m, n, k, config=config, version=version, dtype="bf16", layout="nt")
        tuner.use(make_table(row).write(tmp_path))

    return name


def test_one_stage_that_is_all_of_a_block_s_sum_is_not_lent_to_a_longer_one_that_would_wait_for_ever(served):
    config = next(one for one in SPEC.space(linear(8, 1280, 512), H200).configs() if one["num_stages"] == 1)
    served(8, 1280, 512, config)
    assert tuner.lookup(linear(8, 1280, 512), H200).rule == "exact"
    for k in (1024, 2048):
        match = tuner.lookup(linear(8, 1280, k), H200)
        assert match.rule == "default"
        space = registry.find("matmul", match.kernel).space(linear(8, 1280, k), H200)
        assert space.rejection(match.config, fatal_only=True) is None


IN_PAIRS = Config(
    "warp_specialized",
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
    num_ctas=2,
    SHARE_B=True,
)


@pytest.mark.parametrize("running", ["3.6.0", "3.8.0", "3.9.0"])
@pytest.mark.parametrize(
    ("shape", "config"), [((32, 1280, 8192), PLAIN), ((3000, 3000, 3000), IN_PAIRS)], ids=["cluster_k", "SHARE_B"]
)
def test_a_tuned_cluster_is_left_to_the_formula_under_another_triton_with_one_warning(
    shape, config, running, served, caplog, monkeypatch
):
    served(*shape, config)
    problem = linear(*shape)
    assert tuner.lookup(problem, H200).config == config
    assert caplog.records == []
    monkeypatch.setattr(devices, "triton_version", lambda: running)
    served(*shape, config)
    found = [tuner.lookup(problem, H200) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0].rule == "default"
    assert found[0].kernel != SPEC.name
    assert "num_ctas" not in found[0].config
    assert [f"no Triton {running}: run under 3.7" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(("multiprocessors", "blocks", "reason"), [(132, 16, None), (114, 8, None), (114, 16, "room")])
def test_an_h100_borrows_clusters_that_find_room_on_it(multiprocessors, blocks, reason, make_row):
    config = PLAIN.replace(BLOCK_SIZE_M=8, SPLIT_K=blocks)
    row = make_row(8, 32, 16384, config=config, version=SPEC.version, dtype="bf16", layout="nt")
    h100 = dataclasses.replace(H200, slug=f"nvidia-h100-sm90-{multiprocessors}", sm_count=multiprocessors)
    said = match_rules.refusal(row, row.problem, h100, borrowed=True)
    assert said is None if reason is None else said.startswith(reason)
