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
from tuner.kernels.gemm.hopper import warp_specialized
from tuner.kernels.gemm.padded import spec as padded
from tuner.kernels.ops import by_kernels
from tuner.kernels.ops.checked_call import CheckedCall
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
    **dict.fromkeys(("pointer", "tma", "persistent_tma", "block_scaled"), sums.of_tile),
    "warp_specialized": warp_specialized.order,
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


def test_kernels_that_split_sums_or_exchange_operands_do_not_serve():
    assert {spec.name for spec in registry.serving(decode(1), H200)} == {"pointer", "tma", "warp_specialized"}
    assert [spec.name for spec in registry.serving(decode(1), A100)] == ["pointer"]


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
        assert {ORDERS[spec.name](config, problem, H200) for config in configs} == {sums.Order("wgmma", 64)}
        assert len(configs) > 3


@pytest.mark.parametrize("m", [1, 256])
def test_a_race_proposes_configs_of_one_order_whatever_won_nearby(m):
    problem, proposed, outcomes = decode(m), [], {}
    nearby = [pointer(16, 128), Config("split_k", **dict(pointer(16, 64).pairs), LOADS="pointer", SPLIT_K=4)]
    task = make_search_task(problem, H200, nearby=lambda: nearby, suggested=[pointer(16, 64), pointer(64, 64)])
    search = RefinedSearch(RACE.start(task), task.refine, None, able=task.refinable)
    while wave := search.propose(outcomes):
        proposed += wave
        outcomes |= {one: Outcome(State.COMPLETE, median_us=math.exp(task.estimate(one))) for one in wave}
    assert {ORDERS[config.kernel](config, problem, H200) for config in proposed} == {sums.Order("wgmma", 64)}
    assert pointer(64, 64) in proposed
    assert any("num_ctas" in config for config in proposed)


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
        (pointer(16, 64), "it sums mma.sync by 64, every M of this family wgmma by 64"),
        (pointer(64, 128), "it sums wgmma by 128, every M of this family wgmma by 64"),
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
    assert orders_of(asked, H200) == {sums.Order("wgmma", 64)}


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
