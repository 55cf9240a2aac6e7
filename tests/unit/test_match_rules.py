"""What a lookup answers: a row of its own, the row of a range of M, another GPU's, or the formula; and for which Ms."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import random
import subprocess
import sys

import pytest

import tuner
from tuner.hardware.device import KNOWN, Device, describe
from tuner.kernel.config import Config
from tuner.kernel.space import Rule, SearchSpace
from tuner.lookup import families, match_rules
from tuner.lookup import lookup as lookups
from tuner.lookup.lookup import resolver
from tuner.lookup.table import Table
from tuner.problem import Problem
from tuner.problem.family import Check, Family, Range

H200 = KNOWN["sm_90"]
H100 = describe(name="NVIDIA H100", arch="sm_90", sm_count=114, memory_bytes=2**36, l2_bytes=50 * 2**20)
PROBLEM = Problem(64, 512, 256)

pytestmark = pytest.mark.usefixtures("toy", "no_tables")


def at(m: int) -> Problem:
    return PROBLEM.with_shape(m, 512, 256)


def ranges(*lasts: int, first: int = 1, check: Check | None = None) -> Family:
    """A family whose ranges end at these Ms, which have the rows."""
    firsts = [first, *(last + 1 for last in lasts)]
    spans = zip(firsts, lasts, strict=False)
    return Family(PROBLEM.group(), tuple(Range(first, last, last, "measured") for first, last in spans), check)


def test_a_row_is_refused_where_a_rule_of_its_kernel_fails_whatever_it_raises(toy, install, make_row, tuned):
    def fails(config: Config, problem: Problem, device: Device) -> str | None:
        raise RuntimeError("no model of this device")

    def space(problem: Problem, device: Device) -> SearchSpace:
        return dataclasses.replace(toy.space(problem, device), rules=(Rule("model", "here", fails, fatal=True),))

    install(dataclasses.replace(toy, space=space))
    tuned(make_row(64))
    _, _, decision = resolver().explanation(PROBLEM, H200)
    assert decision.match.rule == "default"
    (refused,) = decision.refused
    said = "not a config of toy: toy(BLOCK_SIZE_M=32, num_warps=4) (RuntimeError: no model of this device)"
    assert refused.reason == said


def spans(found: list[Family]) -> list[list[tuple[int, int, int, str]]]:
    return [[(each.first_m, each.last_m, each.row_m, each.evidence[0]) for each in family.ranges] for family in found]


@pytest.fixture
def tuned(tmp_path, make_row, make_table):
    """Name a table with these rows and families, before those that were named."""
    named = []

    def name(*rows, device=H200, families=()):
        named.append(tmp_path / f"named{len(named)}")
        named[-1].mkdir()
        table = dataclasses.replace(make_table(*rows, device=device), families=tuple(families))
        tuner.use(table.write(named[-1]))

    return name


def answer(m: int = 64, device=H200) -> tuple[str, object]:
    match = tuner.lookup(at(m), device)
    return match.rule, match.config["BLOCK_SIZE_M"]


def test_an_m_of_a_range_gets_the_config_of_the_ranges_last_m(tuned, make_row, caplog):
    rows = [make_row(16, block=16), make_row(64, block=64), make_row(256, block=32)]
    tuned(*rows, families=[ranges(16, 64, 256, check=Check(20, 1.004, 1.03))])
    expected = {1: 16, 2: 16, 15: 16, 17: 64, 63: 64, 65: 32, 255: 32}
    assert {m: answer(m) for m in expected} == {m: ("family", block) for m, block in expected.items()}
    assert {m: answer(m)[0] for m in (16, 64, 256)} == dict.fromkeys((16, 64, 256), "exact")
    match = tuner.lookup(at(100), H200)
    assert (match.grade, match.regret) == ("exact", 1.004)
    assert tuner.lookup(at(101), H200) is match
    assert caplog.records == []
    explained = tuner.explain(at(100), H200)
    assert "rule: family (M 65-256, measured, tuned for matmul 256x512x256 float16 nn), from" in explained
    assert "to tune it" not in explained


def test_a_row_of_its_own_comes_before_a_range_even_of_a_source_named_later(tuned, make_row):
    tuned(make_row(100, block=16))
    tuned(make_row(256, block=64), families=[ranges(256)])
    asked = list(range(90, 110))
    random.Random(3).shuffle(asked)
    assert {m: answer(m) for m in asked} == {m: ("exact", 16) if m == 100 else ("family", 64) for m in asked}


def test_an_m_outside_every_range_gets_the_default_and_one_warning_that_names_the_range_to_tune(
    tuned, make_row, caplog
):
    tuned(make_row(64, block=64), families=[ranges(64, first=9)])
    assert answer(9) == ("family", 64)
    assert {answer(m)[0] for m in (600, 601, 700, 5, 65)} == {"default"}
    (record,) = caplog.records
    assert record.getMessage().endswith("to tune it: tuner run --shape 65-1024x512x256 --dtype float16 --layout nn")
    assert "tuner run --shape 1-512x512x256 --dtype" in tuner.explain(at(5), H200)
    assert "tuner run --shape 1-512x512x" not in tuner.explain(at(65), H200)


def test_the_source_named_last_serves_what_it_holds_and_the_others_the_rest(tuned, make_row):
    tuned(make_row(512, block=32), families=[ranges(512)])
    tuned(make_row(64, block=64), families=[ranges(64, first=17)])
    asked = [1, 16, 17, 63, 65, 400, 16, 18]
    assert [answer(m)[1] for m in asked] == [32, 32, 64, 64, 32, 32, 32, 64]
    assert answer(513)[0] == "default"


@pytest.mark.parametrize("order", [1, 2, 3])
def test_answers_do_not_hang_on_the_order_in_which_ms_are_asked(order, tuned, make_row):
    tuned(make_row(2048, block=32), make_row(4000), families=[ranges(2048, first=300)])
    tuned(make_row(64, block=64), make_row(90, block=512), make_row(128), families=[ranges(64, 90, 128, first=9)])
    ms = [*range(1, 150), 290, 299, 300, 301, 2047, 2049, 3000, 4000, 4001, 2**31 - 1]
    alone = {}
    for m in ms:
        decision = resolver().decide(at(m), H200)
        assert decision.ms[0] <= m <= decision.ms[1]
        alone[m] = decision.match
    random.Random(order).shuffle(ms)
    assert {m: tuner.lookup(at(m), H200) for m in ms} == alone


UNUSABLE = {
    "stale": ({"version": 2}, "stale: measured with version 2 of toy"),
    "too big for this device": ({"block": 512}, "bytes of shared memory"),
    "of a kernel that is gone": ({"config": Config("gone")}, "no kernel 'gone'"),
    "without a row": (None, "there is no row of matmul 64x512x256"),
}


@pytest.mark.parametrize(("parts", "why"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_range_whose_config_cannot_be_used_falls_to_the_next_above_and_is_said_once(
    parts, why, tuned, make_row, install, toy, caplog
):
    other = dataclasses.replace(toy, name="other")
    install(toy, other)
    broken = [] if parts is None else [make_row(64, **({"kernel": "other"} if "version" in parts else {}) | parts)]
    tuned(
        make_row(16, block=16),
        *broken,
        make_row(256, block=32),
        families=[ranges(16, 64, 256)],
    )
    assert [answer(m) for m in (16, 17, 40, 63, 65)] == [
        ("exact", 16),
        ("family", 32),
        ("family", 32),
        ("family", 32),
        ("family", 32),
    ]
    said = [record.getMessage() for record in caplog.records if "cannot be used" in record.getMessage()]
    assert len(said) == 1
    assert "the config of M 17 to 64 from" in said[0]
    assert why.replace("toy", "other") in said[0]
    assert "that of M 256 serves it" in said[0]


def test_the_uppermost_range_falls_to_the_one_below(tuned, make_row, caplog):
    tuned(make_row(16, block=16), families=[ranges(16, 64)])
    assert [answer(m) for m in (17, 63, 64)] == 3 * [("family", 16)]
    assert len(caplog.records) == 1


def test_a_range_none_of_whose_family_can_be_used_is_a_miss_that_says_why(tuned, make_row, caplog):
    tuned(make_row(16, version=2), make_row(64, version=2), families=[ranges(16, 64)])
    assert {answer(m)[0] for m in (3, 40, 41, 64)} == {"default"}
    assert "stale: measured with version 2 of toy" in caplog.records[0].getMessage()
    assert len(caplog.records) <= 2


def test_a_config_that_cannot_run_at_the_first_m_of_its_range_does_not_serve_it(tuned, toy, install, make_row):
    def tall(config, problem, device):
        return "taller than M" if config.integer("BLOCK_SIZE_M") > problem.m else None

    def space(problem, device):
        found = toy.space(problem, device)
        return dataclasses.replace(found, rules=(*found.rules, Rule("height", "a guide", tall, fatal=True)))

    install(dataclasses.replace(toy, space=space))
    tuned(make_row(64, block=64), make_row(256, block=16), families=[ranges(64, 256, first=20)])
    assert [answer(m) for m in (30, 64)] == [("family", 16), ("exact", 64)]


def test_a_config_that_failed_to_launch_for_one_m_is_not_used_for_it_and_stays_for_the_others(tuned, make_row):
    tuned(make_row(64, block=64), make_row(256, block=32), families=[ranges(64, 256)])
    match = tuner.lookup(at(20), H200)
    try:
        other = lookups.drop(at(20), H200, match, "out of resources")
        assert (other.rule, other.config["BLOCK_SIZE_M"]) == ("family", 32)
        assert answer(20) == ("family", 32)
        assert answer(21) == ("family", 64)
    finally:
        match_rules.failed.clear()


def test_what_failed_to_launch_is_remembered_of_so_many_ms_and_no_more(tuned, make_row, monkeypatch):
    monkeypatch.setattr(match_rules, "MOST_FAILED", 8)
    tuned(make_row(64, block=64), make_row(256, block=32), families=[ranges(64, 256)])
    try:
        for m in range(1, 21):
            lookups.drop(at(m), H200, tuner.lookup(at(m), H200), "out of resources")
            assert answer(m) == ("family", 32)
        assert len(match_rules.failed) == 4
    finally:
        match_rules.failed.clear()


def test_another_gpu_of_the_architecture_serves_rows_and_ranges_where_this_one_has_nothing(tuned, make_row, caplog):
    tuned(make_row(64, block=32), make_row(256, block=64), device=H100, families=[ranges(64, 256)])
    assert [answer(m) for m in (64, 63, 100)] == [("same_arch", 32), ("same_arch", 32), ("same_arch", 64)]
    assert tuner.lookup(at(100), H200).regret is None
    assert answer(257)[0] == "default"
    tuned(make_row(128, block=16), families=[ranges(128)])
    assert [answer(m) for m in (63, 129)] == [("family", 16), ("same_arch", 64)]


def test_a_table_of_another_architecture_or_of_a_slice_of_a_gpu_is_not_used(tuned, make_row):
    tuned(make_row(64, block=32), device=KNOWN["sm_80"])
    tuned(make_row(64, block=32), device=dataclasses.replace(H100, slug="nvidia-h100-sm90-16", sm_count=16))
    assert answer() == ("default", 16)


@pytest.mark.parametrize("kind", ["table", "folder", "database"])
def test_every_kind_of_source_tells_its_other_devices(kind, tmp_path, make_row, make_table, make_database):
    row = make_row(64, block=32)
    if kind == "database":
        where = make_database(tmp_path / "tuner.db", row, device=H100)
    else:
        where = make_table(row, device=H100).write(tmp_path)
        where = where.rename(tmp_path / "mine.json") if kind == "table" else tmp_path
    tuner.use(where)
    assert answer() == ("same_arch", 32)


@pytest.mark.parametrize(
    "other",
    [
        *({"dtype": "e4m3"}, {"dtype": "bf16"}, {"layout": "nt"}, {"epilogue": "bias"}, {"out_dtype": "fp32"}),
        *({"aligned": False}, {"extras": {"window": "a"}}, {"n": 1024}, {"k": 512}),
    ],
)
def test_a_range_serves_its_own_family_alone(other, tuned, make_row):
    row = make_row(64, block=32, **other)
    tuned(row, families=[Family(row.problem.group(), (Range(1, 64, 64, "measured"),))])
    assert answer(63) == ("default", 16)
    assert tuner.lookup(row.problem.with_shape(63, row.problem.n, row.problem.k), H200).rule == "family"


def test_ranges_of_default_configs_cover_every_m_once_and_end_at_powers_of_two():
    first, count = 1, 0
    while first <= 2**31 - 1:
        here = match_rules.default_range(first)
        assert here[0] == first
        assert match_rules.default_range(here[1]) == match_rules.default_range((here[0] + here[1]) // 2) == here
        first, count = here[1] + 1, count + 1
    assert first == 2**31
    powers = [1, *(2**power for power in range(4, 31))]
    assert [match_rules.default_range(power)[1] for power in powers] == powers
    assert len({match_rules.default_range(m) for m in range(1, 257)}) == 11
    assert len({match_rules.default_range(m) for m in range(257, 4097)}) == 4 * 16


def test_a_formula_is_asked_once_a_range_for_its_last_m_and_its_middle(toy, install):
    asked = []

    def formula(problem, device):
        asked.append(problem.m)
        return Config("toy", BLOCK_SIZE_M=16, num_warps=4)

    install(dataclasses.replace(toy, default_config=formula))
    for m in (64, 50, 49, 63, 1000, 993, 1024, 1):
        assert answer(m) == ("default", 16)
    assert asked == [57, 64, 1009, 1024, 1]


@pytest.mark.parametrize(("slow", "expected"), [(16, 32), (32, 16)])
def test_a_range_gets_the_config_that_is_estimated_to_lose_less_over_it(slow, expected, toy, install):
    def formula(problem, device):
        return Config("toy", BLOCK_SIZE_M=16 if problem.m < 64 else 32, num_warps=4)

    def estimate(config, problem, device):
        return 10.0 if problem.m < 60 and config["BLOCK_SIZE_M"] == slow else 9.0

    install(dataclasses.replace(toy, default_config=formula, estimate_us=estimate))
    assert {answer(m) for m in (49, 57, 64)} == {("default", expected)}


@pytest.mark.parametrize("order", [(50, 64, 56), (56, 50, 64), (64, 50, 56)])
def test_an_m_that_the_default_of_its_range_does_not_suit_has_the_formula_asked_for_itself(order, toy, install):
    def even(config, problem, device):
        return "for 8 rows" if problem.m % 8 and config["BLOCK_SIZE_M"] == 32 else None

    def space(problem, device):
        found = toy.space(problem, device)
        return dataclasses.replace(found, rules=(*found.rules, Rule("eights", "a guide", even, fatal=True)))

    def formula(problem, device):
        return Config("toy", BLOCK_SIZE_M=16 if problem.m % 8 else 32, num_warps=4)

    install(dataclasses.replace(toy, space=space, default_config=formula))
    assert {m: answer(m)[1] for m in order} == {64: 32, 56: 32, 50: 16}


def test_a_range_whose_last_m_no_kernel_serves_has_the_formula_asked_for_each_m(toy, install):
    supports = lambda problem, device: "too tall" if problem.m > 60 else None  # noqa: E731
    install(dataclasses.replace(toy, supports=supports))
    assert answer(40) == ("default", 16)


def test_what_is_foreseen_is_not_asked_for_again_and_logged_when_it_is_called(toy, install, caplog):
    asked = []

    def formula(problem, device):
        asked.append(problem.m)
        return Config("toy", BLOCK_SIZE_M=16 if problem.m < 100 else 32, num_warps=4)

    install(dataclasses.replace(toy, default_config=formula))
    answer(40)
    logged = len(caplog.records)
    foreseen = {m: match for ms, match in lookups.defaults_up_to(at(40), H200, 256) for m in ms}
    assert sorted(foreseen) == [*range(1, 257)]
    assert len(asked) == 2 * 11 - 1
    assert len(caplog.records) == logged
    assert at(200) not in resolver().answers.by_slug[H200.slug]
    assert {m: tuner.lookup(at(m), H200) for m in foreseen} == foreseen
    assert len(asked) == 2 * 11 - 1
    assert answer(257) == ("default", 32)


def test_what_is_tuned_and_what_no_kernel_serves_is_not_foreseen(toy, install, tuned, make_row):
    supports = lambda problem, device: "too tall" if 64 < problem.m <= 96 else None  # noqa: E731
    install(dataclasses.replace(toy, supports=supports))
    tuned(make_row(20, block=32), make_row(48, block=64), families=[ranges(48, first=40)])
    foreseen = [(ms[0], ms[-1], match.rule) for ms, match in lookups.defaults_up_to(at(1), H200, 200)]
    spans = [(1, 1), (2, 16), (17, 32), (33, 39), (49, 64), (97, 128), (129, 160), (161, 192), (193, 200)]
    assert foreseen == [(first, last, "default") for first, last in spans]
    assert [answer(m) for m in (20, 40, 39)] == [("exact", 32), ("family", 64), ("default", 16)]


def test_what_was_foreseen_and_cannot_be_launched_gives_way(toy, install):
    install(toy, dataclasses.replace(toy, name="other", default_config=lambda *_: Config("other", BLOCK_SIZE_M=16)))
    foreseen = {ms[0]: match for ms, match in lookups.defaults_up_to(at(1), H200, 64)}
    lookups.drop(at(50), H200, foreseen[49], "no room")
    assert tuner.lookup(at(50), H200).config != foreseen[49].config
    assert tuner.lookup(at(51), H200) == foreseen[49]


def test_a_keyed_problem_borrows_from_the_nearest_key_of_its_kind(tmp_path, toy, install, make_row):
    install(dataclasses.replace(toy, op="mine"))
    rows = [
        make_row(1, 1, 1, block=block, op="mine", layout="keyed", extras={"length": length, "mode": mode})
        for block, length, mode in ((32, 1000, "a"), (64, 1500, "a"), (64, 1100, "b"))
    ]
    tuner.use(Table("mine", H200, "2026-01-31T12:00:00Z", tuple(rows)).write(tmp_path))
    near = tuner.lookup(Problem.keyed("mine", {"length": 1100, "mode": "a"}), H200)
    assert (near.rule, near.config["BLOCK_SIZE_M"]) == ("near_key", 32)
    assert tuner.lookup(Problem.keyed("mine", {"length": 1100, "mode": "c"}), H200).rule == "default"


def served_by(first: int, last: int, row_m: int) -> Family:
    return Family(PROBLEM.group(), (Range(first, last, row_m, "measured"),))


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([ranges(64), ranges(16, 64)], [[(1, 64, 64, "m")]]),
        ([ranges(64), ranges(64, 512)], [[(1, 64, 64, "m")], [(65, 512, 512, "m")]]),
        ([ranges(16), ranges(64)], [[(1, 16, 16, "m")], [(17, 64, 64, "m")]]),
        (
            [ranges(64, first=17), ranges(16, 512)],
            [[(1, 16, 16, "m")], [(17, 64, 64, "m")], [(65, 512, 512, "m")]],
        ),
        (
            [ranges(64, 512, first=17), ranges(32, 512)],
            [[(1, 16, 32, "m")], [(17, 64, 64, "m"), (65, 512, 512, "m")]],
        ),
        ([ranges(64, first=17), ranges(512)], [[(1, 16, 512, "m")], [(17, 64, 64, "m")], [(65, 512, 512, "m")]]),
        ([ranges(8), ranges(512, first=100)], [[(1, 8, 8, "m")], [(100, 512, 512, "m")]]),
        (
            [ranges(16, first=9), ranges(48, first=33), ranges(64)],
            [[(1, 8, 64, "m")], [(9, 16, 16, "m")], [(17, 32, 64, "m")], [(33, 48, 48, "m")], [(49, 64, 64, "m")]],
        ),
        ([served_by(9, 64, 9), served_by(1, 512, 32)], [[(1, 8, 32, "m")], [(9, 64, 9, "m")], [(65, 512, 32, "m")]]),
        ([served_by(1, 64, 600), served_by(1, 512, 9)], [[(1, 64, 600, "m")], [(65, 512, 9, "m")]]),
    ],
)
def test_where_families_overlap_the_first_holds_and_each_m_stays_served_by_one(layers, expected):
    assert spans(families.overlaid(layers)) == expected


def test_however_families_overlap_each_m_of_any_is_served_once():
    chance = random.Random(7)
    for _ in range(300):
        layers = []
        for _ in range(chance.randint(1, 4)):
            ends = sorted(chance.sample(range(2, 60), chance.randint(1, 6)))
            found = ranges(*ends, first=chance.randint(1, ends[0]))
            rows = (each._replace(row_m=chance.randint(1, 60)) for each in found.ranges)
            layers.append(dataclasses.replace(found, ranges=tuple(rows)))
        found = families.overlaid(layers)
        served = [m for family in found for m in range(family.first_m, family.last_m + 1)]
        assert served == sorted({m for family in layers for m in range(family.first_m, family.last_m + 1)})
        rows = {each.row_m for family in layers for each in family.ranges}
        assert {each.row_m for family in found for each in family.ranges} <= rows


LIGHT = """
import sys
from tuner.hardware.device import KNOWN
import tuner
tuner.use(sys.argv[1])
for m in (100, 101, 17, 255):
    assert tuner.lookup(tuner.Problem(m, 512, 256), KNOWN["sm_90"]).rule == "family"
print(*(name for name in sys.modules if name == "sqlalchemy" or name.startswith("tuner.kernels.")))
"""


def test_a_lookup_in_a_known_family_loads_no_kernel_but_the_winners_and_no_cost_model(tmp_path, make_table, make_row):
    pytest.importorskip("triton", reason="the installed kernels import Triton")
    from tuner.kernel import registry

    found = importlib.metadata.entry_points(group="tuner.kernels", name="matmul.pointer")
    spec = registry.spec_in(next(iter(found)).load())
    config = Config("pointer", **dict(next(iter(spec.space(at(256), H200).configs()))))
    rows = [make_row(m, config=config, version=spec.version) for m in (64, 256)]
    path = dataclasses.replace(make_table(*rows), families=(ranges(64, 256),)).write(tmp_path)
    done = subprocess.run([sys.executable, "-c", LIGHT, str(path)], capture_output=True, text=True, check=True)
    assert "tuner.kernels.gemm.pointer" in done.stdout
    for other in ("sqlalchemy", "calibration", "gemm.tma", "hopper", "small_m", "padded", "block_scaled"):
        assert other not in done.stdout
    assert done.stderr == ""


def test_a_new_m_of_a_known_range_decides_nothing_anew(tuned, make_row, monkeypatch):
    tuned(make_row(4096), families=[ranges(4096)])
    tuner.lookup(at(4001), H200)
    monkeypatch.setattr(match_rules, "decide", None)
    assert {answer(m)[0] for m in range(1, 4000)} == {"family"}
