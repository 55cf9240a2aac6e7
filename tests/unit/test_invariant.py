"""Batch-invariant problems: their keys, the one order in which a family sums, and what a lookup answers."""

from __future__ import annotations

import math
import random

import pytest

pytest.importorskip("triton")

import tuner
from tuner.errors import KernelError, ProblemError
from tuner.hardware.device import INTERPRETER, KNOWN, Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.gemm import invariant, sums
from tuner.kernels.gemm.any_tile import any_height_tile, any_width
from tuner.kernels.gemm.hopper import cluster_k, ping_pong, warp_specialized
from tuner.kernels.gemm.padded import spec as padded
from tuner.kernels.gemm.pointer import spec as pointer_spec
from tuner.kernels.gemm.small_m import swap_ab
from tuner.kernels.ops import by_kernels
from tuner.kernels.ops.checked_call import CheckedCall
from tuner.kernels.space import tile_resources
from tuner.lookup import match_rules
from tuner.lookup.device_winners import DeviceWinners, by_problem
from tuner.lookup.row import Row
from tuner.problem import Problem, suite, text
from tuner.problem.family import ladders
from tuner.store.records import Outcome, State
from tuner.sweep.race import RACE
from tuner.sweep.search import RefinedSearch
from tuner.sweep.search_task import make_search_task
from tuner.tables import dispatcher_template

H200, A100 = KNOWN["sm_90"], KNOWN["sm_80"]
ORDERS = {
    **dict.fromkeys(("tma", "persistent_tma", "block_scaled", "split_k", "simt"), sums.of_tile),
    "any_width": any_width.order,
    **dict.fromkeys(("any_height", "any_height_ping_pong"), any_height_tile.order),
    **{module.NAME: module.order for module in (cluster_k, swap_ab)},
    "pointer": pointer_spec.order,
    "warp_specialized": warp_specialized.order,
    "ping_pong": ping_pong.order,
    "padded": padded._order,
}
KINDS = [
    {"dtype": "bf16"},
    {"dtype": "fp32"},
    {"dtype": "fp32", "precision": "tf32"},
    {"dtype": "e4m3"},
    {"dtype": "e4m3", "out_dtype": "fp32"},
    {"dtype": "e4m3", "scaling": "block"},
    {"dtype": "i8", "scaling": "row"},
]
MS = (1, 2, 17, 64, 300, 2048)
POINTER = {"GROUP_SIZE_M": 1, "launch_pdl": True, "num_stages": 4, "num_warps": 4}

SPLIT = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 64,
    "LOADS": "pointer",
    "launch_pdl": True,
    "num_stages": 4,
    "num_warps": 4,
}


def decode(m: int, **parts: object) -> Problem:
    return Problem(m, 6144, 4096, dtype="bf16", layout="nt", **{"invariant": True, **parts})


def pointer(block_m: int, block_k: int) -> Config:
    return Config("pointer", BLOCK_SIZE_M=block_m, BLOCK_SIZE_N=64, BLOCK_SIZE_K=block_k, **POINTER)


def orders_of(problem: Problem, device: Device) -> set[sums.Order]:
    """The orders of the default configs of all kernels that serve a problem."""
    try:
        specs = registry.serving(problem, device)
    except KernelError:
        return set()
    return {ORDERS[spec.name](spec.default_config(problem, device), problem, device) for spec in specs}


def test_other_problems_keep_their_keys():
    plain = Problem(16, 6144, 4096, dtype="bf16", layout="nt")
    assert plain.fields()["extras"] == {}
    assert (
        plain == decode(16, invariant=False) == Problem.from_fields(plain.fields() | {"extras": {"invariant": False}})
    )
    assert str(plain) == "matmul 16x6144x4096 bfloat16 nt"


def test_invariance_is_part_of_the_key_and_of_what_is_typed(tmp_path):
    problem = decode(16)
    assert problem != decode(16, invariant=False)
    assert problem == decode(16, invariant=False).as_invariant() == Problem.from_fields(problem.fields())
    assert problem.with_m(1) == problem.group()
    assert (
        text.read("matmul", {"M": "16", "N": "6144", "K": "4096", "dtype": "bf16", "layout": "nt", "invariant": "1"})
        == problem
    )
    (tmp_path / "ours.csv").write_text("m,n,k,dtype,layout,invariant\n1-64,6144,4096,bf16,nt,true\n")
    (named,) = suite.load_with_ladders(tmp_path / "ours.csv")
    (typed,) = ladders(range(1, 65), lambda m: decode(m, invariant=False))
    assert named == typed.as_invariant()
    key = dispatcher_template._key
    assert (
        key(1, 2, 3, "float16", invariant=False) == key(1, 2, 3, "float16") != key(1, 2, 3, "float16", invariant=True)
    )


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"op": "bmm", "extras": {"batch": 4}}, "bmm has no invariant form"),
        ({"dtype": "fp32", "precision": "tf32x3"}, "precision 'tf32x3' has no invariant form"),
        ({"extras": {"invariant": "yes"}, "invariant": None}, "invariant must be True or False"),
    ],
)
def test_what_has_no_invariant_form_says_so(parts, said):
    with pytest.raises(ProblemError, match=said):
        Problem(16, 64, 64, **{"invariant": True, **parts})


def test_amd_and_kernels_of_other_orders_do_not_serve(toy):
    with pytest.raises(KernelError, match="toy: it keeps to no one order of sums"):
        registry.serving(decode(16), H200)


def test_no_order_is_known_of_amd():
    with pytest.raises(KernelError, match="no invariant form on gfx942"):
        registry.serving(decode(16), KNOWN["gfx942"])


def test_operands_are_exchanged_for_wgmma_alone():
    assert {spec.name for spec in registry.serving(decode(1), H200)} == {
        "pointer",
        "tma",
        "warp_specialized",
        "swap_ab",
    }
    assert [spec.name for spec in registry.serving(decode(1), A100)] == ["pointer"]


@pytest.mark.parametrize(
    ("n", "k", "parts"),
    [(256, 7168, 8), (1024, 4096, 4), (1280, 8192, 4), (2112, 7168, 2), (2368, 7168, 1), (256, 512, 2), (256, 448, 1)],
)
def test_few_columns_are_summed_in_parts_of_one_length_whatever_m_and_the_kernel(n, k, parts):
    whole = [Problem(m, n, k, dtype="bf16", layout="nt", invariant=True) for m in (1, 17, 64, 200, 256, 2048, 8192)]
    assert {sums.family_parts(problem) for problem in whole} == {parts}
    assert sums.family_parts(Problem(16, n, k, dtype="bf16")) == 1
    orders, serving = set(), set()
    for problem in whole:
        for spec in registry.serving(problem, H200):
            tried = spec.space(problem, H200)
            configs = [spec.default_config(problem, H200), *tried.configs()]
            assert tried.rejection(configs[0], fatal_only=True) is None
            orders |= {ORDERS[spec.name](config, problem, H200) for config in configs}
            serving.add(spec.name)
    assert orders == {sums.Order("wgmma", 16, k // parts if parts > 1 else 0)}
    assert {"pointer", "warp_specialized"} <= serving
    assert ("cluster_k" in serving, "split_k" in serving) == (parts > 1, parts > 1)


def test_no_kernels_default_is_one_that_cannot_run():
    """A ring of one stage for several steps waits for itself: a GPU hung on such a default of 1x128x1280."""
    draw, served = random.Random(5), set()
    for _ in range(60):
        m, n, k = (round(math.exp(draw.uniform(0, math.log(top)))) for top in (2048, 2304, 16384))
        n, k = (-(-side // 64) * 64 for side in (n, k))
        problem = Problem(m, n, k, dtype="bf16", layout=draw.choice(("nt", "nn", "tn")), invariant=True)
        for spec in registry.serving(problem, H200):
            config, tried = spec.default_config(problem, H200), spec.space(problem, H200)
            assert tried.rejection(config, fatal_only=True) is None, (problem, config)
            served.add((spec.name, sums.family_parts(problem)))
    assert {("cluster_k", 4), ("cluster_k", 8), ("split_k", 2), ("swap_ab", 4), ("warp_specialized", 8)} <= served


@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "sm_100", "sm_120"])
def test_pointer_holds_no_more_sums_than_fit_beside_those_of_a_part(arch):
    problem, device = Problem(4096, 1024, 4096, dtype="bf16", layout="nt", invariant=True), KNOWN[arch]
    spec = registry.find("matmul", "pointer")
    configs = [spec.default_config(problem, device), *spec.space(problem, device).configs()]
    held = [(tile_resources.accumulator_registers(config, device), config.integer("num_warps")) for config in configs]
    assert all(sums <= (64 if warps >= 4 else 32) for sums, warps in held)


def test_exchanged_operands_are_summed_whole_though_m_is_few_columns():
    """The transposed output of 256 rows has 256 columns, which an invariant family of its own would sum in parts."""
    problem = Problem(256, 4096, 4096, dtype="bf16", layout="nt", invariant=True)
    tile = {"BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_N_REST": 0, "BLOCK_SIZE_K": 64, "num_warps": 8}
    rest = {"EPILOGUE_PARTS": 2, "GROUP_SIZE_M": 1, "num_stages": 3, "launch_pdl": True}
    config = Config("warp_specialized", **tile, **rest, SWAP_AB=True)
    tried = registry.find("matmul", "warp_specialized").space(problem, H200)
    assert tried.rejection(config, fatal_only=True) is None


def test_the_interpreter_serves_parts_whatever_is_left_of_k():
    for k in range(960, 1025):
        for m in (1, 33):
            problem = Problem(m, 40, k, dtype="bf16", layout="nt", invariant=True)
            serving = {spec.name for spec in registry.serving(problem, INTERPRETER)}
            assert {"pointer", "split_k"} <= serving if sums.family_parts(problem) > 1 else "pointer" in serving, k


def test_parts_have_one_length_or_there_are_none():
    assert sums.family_parts(Problem(1, 256, 64 * 37, dtype="bf16", invariant=True)) == 1
    assert sums.family_parts(Problem(1, 256, 64 * 38, dtype="bf16", invariant=True)) == 2
    assert sums.family_parts(Problem(1, 256, 7168, dtype="e4m3", invariant=True)) == 1
    uneven = Config("split_k", **{**SPLIT, "num_stages": 3}, BLOCK_SIZE_K=256, SPLIT_K=8)
    problem = Problem(16, 256, 7168, dtype="bf16", layout="nt", invariant=True)
    rejected = registry.find("matmul", "split_k").space(problem, H200).rejection(uneven, fatal_only=True)
    assert (
        rejected
        == "one order: it sums wgmma by 16 in unequal parts, every M of this family wgmma by 16 in parts of 896"
    )


@pytest.mark.parametrize(
    "device", [H200, A100, KNOWN["sm_100"], KNOWN["sm_120"], INTERPRETER], ids=lambda one: one.arch
)
def test_default_configs_sum_in_one_order_whatever_m_the_layout_and_the_kernel(device):
    draw, served = random.Random(device.arch), 0
    for kind in KINDS:
        n, k = (draw.choice((1, 7, 16, 100, 1000, 4096)) for _ in "nk")
        found = {
            order
            for layout in ("nt", "tn")
            for m in MS
            for order in orders_of(Problem(m, n, k, layout=layout, invariant=True, **kind), device)
        }
        assert len(found) <= 1, (kind, n, k)
        served += len(found)
    assert served >= 4


@pytest.mark.parametrize("m", [1, 33, 2048])
def test_a_space_holds_one_order_and_something_to_choose_from(m):
    problem = decode(m)
    for spec in registry.serving(problem, H200):
        configs = spec.space(problem, H200).configs()
        assert {ORDERS[spec.name](config, problem, H200) for config in configs} == {sums.Order("wgmma", 16)}
        assert len(configs) > 3 or (spec.name, len(configs)) in {("any_width", 3), ("any_height", 1)}


@pytest.mark.parametrize(("m", "option"), [(1, "PREFETCH_KIB"), (256, "num_ctas")])
def test_a_race_proposes_configs_of_one_order_whatever_won_nearby(m, option):
    problem, proposed, outcomes = decode(m), [], {}
    nearby = [pointer(16, 128), Config("split_k", **dict(pointer(16, 64).pairs), LOADS="pointer", SPLIT_K=4)]
    task = make_search_task(problem, H200, nearby=lambda: nearby, suggested=[pointer(16, 64), pointer(64, 64)])
    search = RefinedSearch(RACE.start(task), task.refine, None, refinable=task.refinable)
    while wave := search.propose(outcomes):
        proposed += wave
        outcomes |= {one: Outcome(State.COMPLETE, median_us=math.exp(task.estimate(one))) for one in wave}
    assert {ORDERS[config.kernel](config, problem, H200) for config in proposed} == {sums.Order("wgmma", 16)}
    assert pointer(64, 64) in proposed
    assert any(option in config for config in proposed)


def test_the_witness_does_not_depend_on_m():
    for device in (H200, A100, INTERPRETER):
        for kind in KINDS if device is not A100 else KINDS[:3]:
            problems = [Problem(m, 512, 512, layout="nt", invariant=True, **kind) for m in MS]
            (config,) = {invariant.witness_config(problem, device) for problem in problems}
            for problem in problems:
                found = registry.find("matmul", config.kernel).space(problem, device)
                assert found.rejection(config, fatal_only=True) is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (pointer(16, 64), "it sums mma.sync by 64, every M of this family wgmma by 16"),
        (
            Config("split_k", **SPLIT, BLOCK_SIZE_K=64, SPLIT_K=4),
            "this family's sums are not split",
        ),
    ],
)
@pytest.mark.parametrize("rule", ["exact", "family", "same_arch"])
def test_a_planted_row_of_another_order_is_refused(rule, config, said, make_row, make_family):
    row = Row(decode(16), config, registry.find("matmul", "pointer").version, make_row().made, 10.0, 1.0, 1.0, 1)
    asked = decode(16 if rule != "family" else 9)
    winners = DeviceWinners("planted", by_problem([row]), "", _families(make_family) if rule == "family" else {})
    sources = ([], [winners]) if rule == "same_arch" else ([winners], [])
    decision = match_rules.decide(asked, H200, *sources)
    assert decision.match.rule == "default"
    assert [said in refused.reason for refused in decision.refused] == [True]
    assert orders_of(asked, H200) == {sums.Order("wgmma", 16)}


def test_a_row_of_the_familys_order_serves(make_row, make_family):
    row = Row(
        decode(16), pointer(64, 64), registry.find("matmul", "pointer").version, make_row().made, 10.0, 1.0, 1.0, 1
    )
    winners = DeviceWinners("tuned", by_problem([row]), "", _families(make_family))
    assert match_rules.decide(decode(16), H200, [winners]).match.rule == "exact"
    assert match_rules.decide(decode(9), H200, [winners]).match.config == pointer(64, 64)
    assert match_rules.decide(decode(17), H200, [winners]).match.rule == "default"


def test_plain_rows_do_not_serve_invariant_problems_nor_these_plain_ones(make_row):
    version = registry.find("matmul", "pointer").version
    for tuned, asked in ((False, True), (True, False)):
        row = Row(decode(16, invariant=tuned), pointer(64, 64), version, make_row().made, 10.0, 1.0, 1.0, 1)
        decision = match_rules.decide(decode(16, invariant=asked), H200, [DeviceWinners("it", by_problem([row]), "")])
        assert (decision.match.rule, decision.refused) == ("default", ())


@pytest.mark.usefixtures("no_tables")
def test_a_miss_names_the_command_that_tunes_it(caplog):
    tuner.lookup(decode(16), H200)
    assert "tuner run --shape 1-512x6144x4096 --dtype bfloat16 --layout nt --invariant" in caplog.text


def _families(make_family):
    from tuner.lookup.families import TunedBatches
    from tuner.problem.batches import split

    family = make_family(16, problem=decode(1))
    return {split(decode(1))[0]: TunedBatches([family])}


def test_a_strict_process_has_no_library_for_it():
    match = match_rules.decide(decode(16), H200, []).match
    with pytest.raises(KernelError, match="torch's library sums in another order for another M"):
        by_kernels._compute_by_torch(CheckedCall(None, decode(16), H200, None, match))
