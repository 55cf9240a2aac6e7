"""The pointer kernel's space is small, explained and honest; its default config is a formula that obeys it."""

from __future__ import annotations

import random
from functools import partial

import pytest

from tuner import Config, Problem
from tuner.hardware.device import INTERPRETER, KNOWN, Device, describe
from tuner.kernel.space import Rule, SearchSpace
from tuner.kernels.base.operands import make_operands, placement
from tuner.kernels.gemm.pointer.default import default_config
from tuner.kernels.gemm.pointer.space import RULES, space, supports
from tuner.kernels.space import tile_resources

H200 = KNOWN["sm_90"]
SIZES = (1, 2, 3, 7, 16, 17, 31, 64, 100, 127, 129, 512, 1000, 4094, 4096, 5000, 16384, 100_000, 2**31 - 1)


def linear(m: int, n: int, k: int, dtype: str = "bf16") -> Problem:
    return Problem(m, n, k, dtype=dtype, layout="nt")


@pytest.mark.parametrize(
    ("shape", "fewest", "most"),
    [
        ((4096, 4096, 4096), 300, 1000),
        ((16, 8192, 1024), 150, 500),
        ((1, 6144, 4096), 150, 500),
        ((64, 256, 7168), 300, 1000),
        ((512, 512, 512), 300, 1200),
    ],
)
def test_a_space_is_worth_an_exhaustive_search(shape, fewest, most):
    configs = space(linear(*shape), H200).configs()
    assert fewest <= len(configs) <= most
    assert len(set(configs)) == len(configs)


def test_the_interpreter_tries_few_configs_of_one_stage():
    configs = space(Problem(64, 64, 64), INTERPRETER).configs()
    assert 5 <= len(configs) <= 27
    assert {(config["num_warps"], config["num_stages"]) for config in configs} == {(4, 1)}


@pytest.mark.parametrize("device", [*KNOWN.values(), INTERPRETER], ids=lambda device: device.arch)
def test_the_default_obeys_the_rules_for_any_problem(device):
    draw = random.Random(device.arch)
    tried = 0
    while tried < 400:
        dtype = draw.choice(["fp16", "bf16", "fp32", "e4m3", "e5m2"])
        precision = draw.choice(["ieee", "tf32"]) if dtype == "fp32" else None
        shape = [draw.choice(SIZES) for _ in range(3)]
        problem = Problem(*shape, dtype=dtype, layout=draw.choice(["nn", "nt", "tn", "tt"]), precision=precision)
        if supports(problem, device) is None:
            config = default_config(problem, device)
            searched = space(problem, device)
            assert searched.rejection(config) is None, f"{problem}: {config}"
            assert searched.canonicalize(config) == config
            tried += 1


def test_the_default_is_among_the_configs_a_search_tries():
    for shape in [(4096, 4096, 4096), (16, 8192, 1024), (64, 256, 7168), (300, 200, 100)]:
        problem = linear(*shape)
        assert default_config(problem, H200) in space(problem, H200).configs()


@pytest.mark.parametrize(("layout", "block_m", "block_n"), [("nt", 256, 128), ("nn", 128, 256)])
def test_the_default_of_a_large_square_is_the_one_measured_good_on_hopper(layout, block_m, block_n):
    config = default_config(Problem(4096, 4096, 4096, layout=layout), H200)
    tile = {"BLOCK_SIZE_M": block_m, "BLOCK_SIZE_N": block_n, "BLOCK_SIZE_K": 64}
    assert config == Config("pointer", **tile, GROUP_SIZE_M=8, launch_pdl=True, num_stages=4, num_warps=8)


def test_the_default_of_unaligned_operands_keeps_their_addresses_in_registers():
    problem = linear(1023, 2047, 4093)
    config = default_config(problem, H200)
    assert tile_resources.loads_per_thread(config, problem, H200) <= 64
    assert config["num_stages"] == 2


def test_the_default_of_few_rows_covers_them_and_keeps_many_loads_in_flight():
    config = default_config(linear(16, 8192, 1024), H200)
    assert (config["BLOCK_SIZE_M"], config["num_stages"]) == (16, 6)
    assert 32 <= config["BLOCK_SIZE_N"] <= 128
    assert config["BLOCK_SIZE_K"] >= 64


def test_the_default_takes_more_tiles_on_a_device_of_more_multiprocessors():
    few = describe(name="slice", arch="sm_90", sm_count=16, memory_bytes=1, l2_bytes=1)
    problem = linear(512, 512, 4096)
    area = [int(c["BLOCK_SIZE_M"]) * int(c["BLOCK_SIZE_N"]) for c in (default_config(problem, d) for d in (few, H200))]
    assert area[0] > area[1]


def test_the_default_takes_some_thousand_calls(count_calls):
    for problem in (linear(size, 4096, 4096) for size in range(1, 2000, 40)):
        assert count_calls(partial(default_config, problem, H200)) < 10_000  # 6,400 take two milliseconds


def test_group_size_m_is_canonical_where_it_changes_no_order():
    one_row, six_rows = space(linear(64, 4096, 512), H200), space(linear(768, 4096, 512), H200)
    config = Config(
        "pointer", BLOCK_SIZE_M=128, BLOCK_SIZE_N=128, BLOCK_SIZE_K=64, GROUP_SIZE_M=16, num_stages=3, num_warps=4
    )
    assert one_row.canonicalize(config)["GROUP_SIZE_M"] == 1
    assert six_rows.canonicalize(config)["GROUP_SIZE_M"] == 8
    assert six_rows.canonicalize(config.replace(GROUP_SIZE_M=0))["GROUP_SIZE_M"] == 1


def test_num_stages_is_canonical_where_no_load_is_asynchronous():
    aligned, unaligned = linear(1024, 2048, 4096), linear(1023, 2047, 4093)
    assert space(unaligned, H200).canonicalize(GOOD)["num_stages"] == 2
    assert space(aligned, H200).canonicalize(GOOD)["num_stages"] == GOOD["num_stages"]
    assert {config["num_stages"] for config in space(unaligned, H200).configs()} == {2}


@pytest.mark.parametrize("dtype", ["fp16", "e4m3", "fp32"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_the_rules_know_how_wide_a_launch_loads(dtype, layout):
    shapes = (
        (64, 64, 64),
        (1, 64, 64),
        (63, 62, 60),
        (8, 4, 2),
        (64, 63, 64),
        (64, 1, 64),
        (64, 64, 1),
        (4, 4096, 4094),
    )
    problems = [Problem(*shape, dtype=dtype, layout=layout) for shape in shapes]
    problems.append(Problem(64, 64, 64, dtype=dtype, layout=layout, aligned=False))
    for problem in problems:
        operands = make_operands(problem, "meta", 0)
        assert tile_resources.vectors(problem) == (placement(operands.a).vector, placement(operands.b).vector), problem


BASE = {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 8}
GOOD = Config("pointer", **BASE, num_stages=3, num_warps=4)


@pytest.mark.parametrize(
    ("change", "rule", "fatal"),
    [
        ({"BLOCK_SIZE_M": 96}, "parameters", True),
        ({"SPLIT_K": 2}, "parameters", True),
        ({"num_warps": 0}, "parameters", True),
        ({"num_stages": 12, "BLOCK_SIZE_K": 128}, "shared memory", True),
        ({"BLOCK_SIZE_N": 256}, "registers", False),
        ({"BLOCK_SIZE_M": 256, "BLOCK_SIZE_N": 256}, "registers", False),
        ({"BLOCK_SIZE_M": 32, "num_warps": 1}, "registers", False),
        ({"BLOCK_SIZE_M": 32, "BLOCK_SIZE_K": 256, "num_warps": 2, "num_stages": 2}, "loads", False),
        ({"num_warps": 2, "BLOCK_SIZE_N": 32}, "tensor core shape", False),
        ({"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 32, "num_warps": 8}, "idle warps", False),
        ({"BLOCK_SIZE_K": 16}, "short rows", False),
        ({"num_stages": 1}, "stages", False),
        ({"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 32}, "below wgmma", False),
        ({"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 32}, "waves", False),
    ],
    ids=str,
)
def test_a_rule_says_why_a_config_is_not_tried(change, rule, fatal):
    searched = space(linear(4096, 4096, 4096), H200)
    assert searched.rejection(GOOD) is None
    reason = searched.rejection(GOOD.replace(**change))
    assert reason is not None
    assert reason.startswith(f"{rule}: ")
    assert (searched.rejection(GOOD.replace(**change), fatal_only=True) is not None) is fatal


def test_an_oblong_tile_loses_to_a_squarer_one_unless_the_shape_is_oblong_too():
    oblong = GOOD.replace(BLOCK_SIZE_M=16, BLOCK_SIZE_N=256)
    assert space(linear(512, 512, 512), H200).rejection(oblong).startswith("oblong")
    assert space(linear(16, 4096, 512), H200).rejection(oblong.replace(GROUP_SIZE_M=1)) is None


def test_small_shapes_reject_tiles_that_are_padding():
    searched = space(linear(16, 100, 40), H200)
    assert searched.rejection(GOOD.replace(BLOCK_SIZE_M=32)).startswith("padding")
    assert searched.rejection(GOOD.replace(BLOCK_SIZE_M=16, BLOCK_SIZE_K=128)).startswith("beyond K")


def test_eight_bit_operands_need_32_values_of_k():
    searched = space(linear(64, 64, 64, "e4m3"), H200)
    reason = searched.rejection(GOOD.replace(BLOCK_SIZE_K=16), fatal_only=True)
    assert reason == "dot size: BLOCK_SIZE_K is 16, float8_e4m3fn needs 32"


def test_every_rule_has_a_source():
    assert all(rule.source for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_amd_spaces_hold_amds_parameters():
    for arch, kpacks in (("gfx942", {1, 2}), ("gfx950", {1})):
        configs = space(linear(4096, 4096, 4096), KNOWN[arch]).configs()
        assert {config["kpack"] for config in configs} == kpacks
        assert {config["matrix_instr_nonkdim"] for config in configs} == {16, 32}
        assert {config["waves_per_eu"] for config in configs} == {0, 2}


@pytest.mark.parametrize(
    ("problem", "arch", "reason"),
    [
        (Problem(64, 64, 64, dtype="int8"), "sm_90", None),
        (Problem(64, 64, 64, a_dtype="int8", b_dtype="fp16"), "sm_90", "no int8 * float16"),
        (Problem(64, 64, 64, a_dtype="fp16", b_dtype="bf16"), "sm_90", "no float16 * bfloat16"),
        (Problem(64, 64, 64, dtype="e4m3"), "sm_80", "needs sm_89"),
        (Problem(64, 64, 64, dtype="e5m2"), "sm_80", None),
        (Problem(64, 64, 64, dtype="e4m3"), "gfx942", "fnuz"),
        (Problem(64, 64, 64, dtype="e4m3"), "gfx950", None),
        (Problem(64, 64, 64, dtype="fp32", precision="tf32"), "gfx950", "no tf32"),
        (Problem(64, 64, 64, dtype="fp32", precision="tf32"), "gfx942", None),
        (Problem(64, 64, 65, aligned=True), "sm_90", "aligned operands need"),
    ],
    ids=str,
)
def test_what_a_device_cannot_do_is_a_sentence(problem, arch, reason):
    said = supports(problem, KNOWN[arch])
    if reason is None:
        assert said is None
    else:
        assert said is not None
        assert reason in said


def test_nothing_older_than_sm_80_is_served():
    turing = describe(name="T4", arch="sm_75", sm_count=40, memory_bytes=1, l2_bytes=1)
    assert supports(linear(64, 64, 64), turing) == "no sm_75: it needs sm_80 or newer"


def small(rejected: tuple[int, ...] = ()) -> SearchSpace:
    def rejects(config: Config, problem: Problem, device: Device) -> str | None:
        return "no" if config["A"] in rejected else None

    rule = Rule("some", "this test", rejects)
    return SearchSpace("any", linear(64, 64, 64), H200, {"A": tuple(range(1, 9))}, (rule,))


def test_of_equals_in_cost_ties_decide_and_nothing_else_is_asked_for_them():
    asked: list[int] = []

    def ties(config: Config) -> int:
        asked.append(config.integer("A"))
        return -config.integer("A")

    assert small().best(lambda config: config.integer("A") // 4, ties=ties) == Config("any", A=3)
    assert sorted(asked) == [1, 2, 3]
    assert small().best(lambda config: config.integer("A") // 4) == Config("any", A=1)


def test_the_best_of_a_few_whose_cost_is_known_is_one_of_them_unless_rules_reject_them_all():
    few = {Config("any", A=5): 0.5, Config("any", A=3): 0.2}
    assert small().best(lambda config: config["A"], among=few) == Config("any", A=3)
    assert small((3,)).best(lambda config: config["A"], among=few) == Config("any", A=5)
    assert small((3, 5)).best(lambda config: config["A"], among=few) == Config("any", A=1)
    assert small().best(lambda config: config["A"], among={}) == Config("any", A=1)
    assert small(tuple(range(1, 9))).best(lambda config: config["A"], among=few) is None
