"""What is borrowed for a problem that nobody tuned, from how far, and when the formula is the better guess."""

from __future__ import annotations

import dataclasses

import pytest

import tuner
from tuner.hardware.device import KNOWN, describe
from tuner.kernel.config import Config
from tuner.kernel.space import Rule
from tuner.lookup import match_rules
from tuner.lookup.lookup import resolver
from tuner.lookup.neighbours import MOST, REACH
from tuner.lookup.table import Table
from tuner.problem import Problem
from tuner.problem.distance import distance, place

H200 = KNOWN["sm_90"]
H100 = describe(name="NVIDIA H100", arch="sm_90", sm_count=114, memory_bytes=2**36, l2_bytes=50 * 2**20)
PROBLEM = Problem(64, 512, 256)

pytestmark = pytest.mark.usefixtures("toy", "no_tables")


@pytest.fixture
def tuned(tmp_path, make_row, make_table):
    """Name a table with these rows, and no other."""

    def name(*rows, device=H200):
        tuner.use(None)
        tuner.use(make_table(*rows, device=device).write(tmp_path))

    return name


@pytest.fixture
def modelled(toy, install):
    """Give the kernel a model: microseconds by BLOCK_SIZE_M. The formula's is 16."""

    def model(**us: float) -> None:
        times = {int(name[1:]): value for name, value in us.items()}
        install(dataclasses.replace(toy, estimate_us=lambda config, *_: times[config.integer("BLOCK_SIZE_M")]))

    return model


def without_figure(row):
    return dataclasses.replace(row, vs_default=None)


def answer(problem=PROBLEM, device=H200):
    match = tuner.lookup(problem, device)
    return match.rule, match.config["BLOCK_SIZE_M"]


def test_another_shape_nearby_serves_where_the_model_promises_more_than_the_formula(tuned, modelled, make_row):
    modelled(b16=10.0, b32=8.0, b64=20.0)
    tuned(make_row(64, 1024, 256, block=32))
    assert answer() == ("near_shape", 32)


@pytest.mark.parametrize("us", [9.8, 10.0, 12.0])
def test_the_formula_serves_where_the_model_promises_less_than_its_own_error(us, tuned, modelled, make_row):
    modelled(b16=10.0, b32=us)
    tuned(without_figure(make_row(64, 1024, 256, block=32)))
    assert answer() == ("default", 16)


def test_near_by_what_was_measured_there_counts_and_further_off_what_the_model_says_here(tuned, modelled, make_row):
    modelled(b16=10.0, b32=11.0)
    tuned(make_row(64, 520, 256, block=32))
    assert answer() == ("near_shape", 32)
    tuned(make_row(64, 2048, 256, block=32))
    assert answer() == ("default", 16)


def test_of_several_neighbours_the_one_that_the_model_prefers_here_serves(tuned, modelled, make_row):
    modelled(b16=10.0, b32=9.0, b64=5.0)
    tuned(make_row(64, 1024, 256, block=32), make_row(64, 256, 256, block=64))
    assert answer() == ("near_shape", 64)


def test_a_neighbour_in_m_gives_way_to_the_formula_too(tuned, modelled, make_row):
    modelled(b16=10.0, b32=40.0)
    tuned(make_row(100, block=32))
    assert answer() == ("default", 16)


def test_a_neighbour_won_by_the_formulas_own_config_is_evidence_for_it(tuned, modelled, make_row):
    modelled(b16=10.0)
    tuned(without_figure(make_row(100, block=16)))
    assert answer() == ("near_m", 16)


@pytest.mark.parametrize(("n", "rule"), [(700, "near_shape"), (1024, "default")])
def test_without_a_model_another_shape_must_be_nearer_than_a_factor_of_two(n, rule, tuned, make_row):
    tuned(make_row(64, n, 256, block=32, aligned=True))
    assert answer()[0] == rule


def test_beyond_its_reach_nothing_is_borrowed(tuned, modelled, make_row):
    modelled(b16=10.0, b32=1.0)
    tuned(make_row(64, 512, 256 * 16, block=32))
    assert answer() == ("default", 16)


@pytest.mark.parametrize("kin", [{"dtype": "bf16"}, {"layout": "nt"}, {"epilogue": "bias"}])
def test_a_dtype_of_the_same_size_another_layout_or_epilogue_serves_by_the_model(kin, tuned, modelled, make_row):
    tuned(make_row(64, block=32, **kin))
    assert answer() == ("default", 16)
    modelled(b16=10.0, b32=5.0)
    tuned(make_row(64, block=32, **kin))
    assert answer() == ("near_shape", 32)


@pytest.mark.parametrize(
    "other",
    [{"dtype": "e4m3"}, {"dtype": "int8"}, {"out_dtype": "fp32"}, {"aligned": False}, {"extras": {"window": "a"}}],
)
def test_what_meets_other_rules_or_instructions_never_serves(other, tuned, modelled, make_row):
    modelled(b16=10.0, b32=1.0)
    tuned(make_row(64, block=32, **other))
    assert answer() == ("default", 16)


def test_a_neighbour_that_cannot_run_here_is_passed_over_and_said(tuned, modelled, make_row):
    modelled(b16=10.0, b32=5.0)
    tuned(make_row(64, 600, 256, block=512, aligned=True), make_row(64, 1024, 256, block=32))
    assert answer() == ("near_shape", 32)
    assert "refused by rule near_shape: toy(BLOCK_SIZE_M=512" in tuner.explain(PROBLEM, H200)


def test_what_no_search_would_try_here_is_not_borrowed(tuned, modelled, toy, install, make_row):
    def untried(config, problem, device):
        return "too wide" if problem.n < 1024 and config.integer("BLOCK_SIZE_M") == 32 else None

    def space(problem, device):
        found = toy.space(problem, device)
        return dataclasses.replace(found, rules=(*found.rules, Rule("width", "a guide", untried)))

    install(dataclasses.replace(toy, space=space, estimate_us=lambda config, *_: 100 / config.integer("BLOCK_SIZE_M")))
    tuned(make_row(64, 1024, 256, block=32))
    assert answer() == ("default", 16)
    assert answer(Problem(64, 1024, 256)) == ("exact", 32)


def test_a_table_of_other_kernel_versions_costs_a_bounded_number_of_checks(tuned, modelled, make_row, monkeypatch):
    modelled(b16=10.0, b32=5.0)
    tuned(*(make_row(64, 512 + 8 * step, 256, version=2) for step in range(1, 200)))
    checked = []
    refusal = match_rules.refusal
    monkeypatch.setattr(match_rules, "refusal", lambda *args, **given: checked.append(args) or refusal(*args, **given))
    assert answer()[0] == "default"
    assert len(checked) == MOST


def test_another_gpu_of_the_architecture_serves_where_this_one_has_nothing(
    tmp_path, tuned, modelled, make_row, make_table
):
    modelled(b16=10.0, b32=5.0, b64=4.0)
    tuned(make_row(64, block=32), device=H100)
    assert answer() == ("same_arch", 32)
    assert answer(Problem(80, 512, 256)) == ("same_arch", 32)
    tuner.use(make_table(make_row(100, block=64)).write(tmp_path))
    assert answer() == ("near_m", 64)


def test_a_table_of_another_gpu_is_not_used_but_for_that(tuned, modelled, make_row):
    modelled(b16=10.0, b32=5.0)
    tuned(make_row(64, block=32), device=KNOWN["sm_80"])
    assert answer() == ("default", 16)
    tuned(make_row(64, block=32), device=dataclasses.replace(H100, slug="nvidia-h100-sm90-8", sm_count=8))
    assert answer() == ("default", 16)  # a slice of a GPU is no relative


@pytest.mark.parametrize("kind", ["table", "folder", "database"])
def test_every_kind_of_source_tells_its_other_devices(kind, tmp_path, modelled, make_row, make_table, make_database):
    modelled(b16=10.0, b32=5.0)
    row = make_row(64, block=32)
    if kind == "database":
        where = make_database(tmp_path / "tuner.db", row, device=H100)
    else:
        where = make_table(row, device=H100).write(tmp_path)
        where = where.rename(tmp_path / "mine.json") if kind == "table" else tmp_path
    tuner.use(where)
    assert answer() == ("same_arch", 32)


def test_explain_shows_what_was_weighed(tuned, modelled, make_row):
    modelled(b16=10.0, b32=5.0, b64=40.0)
    tuned(make_row(64, 1024, 256, block=32), make_row(64, 2048, 256, block=64))
    lines = tuner.explain(PROBLEM, H200).splitlines()
    first = next(line for line in lines if line.startswith("  near_shape"))
    assert "near_shape matmul 64x1024x256 float16 nn: distance 1.00, " in first
    assert any("64x2048x256" in line for line in lines)
    tuned(make_row(64, 2048, 256, block=64))
    assert "no neighbour promises more than the kernel's formula" in tuner.explain(PROBLEM, H200)


def test_numbers_among_a_problems_keys_are_sizes_and_words_are_not():
    def keyed(**extras):
        return Problem(1, 1, 1, op="mine", extras=extras)

    assert distance(keyed(length=1024, width=64), keyed(length=4096, width=64), 132) == pytest.approx(2, abs=0.01)
    assert place(keyed(length=1024)).kind == place(keyed(length=8)).kind
    assert place(keyed(mode="a")).kind != place(keyed(mode="b")).kind
    assert place(keyed(causal=True)).kind != place(keyed(causal=False)).kind
    assert place(keyed(length=8)).kind != place(keyed(width=8)).kind


def test_a_keyed_problem_borrows_from_the_nearest_key_of_its_kind(tmp_path, toy, install, make_row):
    install(dataclasses.replace(toy, op="mine"))
    keyed = {"op": "mine", "aligned": True}
    rows = [
        make_row(1, 1, 1, block=block, extras={"length": length, "mode": mode}, **keyed)
        for block, length, mode in ((32, 1000, "a"), (64, 1500, "a"), (64, 1100, "b"))
    ]
    tuner.use(Table("mine", H200, "2026-01-31T12:00:00Z", tuple(rows)).write(tmp_path))
    assert answer(Problem(1, 1, 1, extras={"length": 1100, "mode": "a"}, **keyed)) == ("near_shape", 32)
    assert answer(Problem(1, 1, 1, extras={"length": 5000, "mode": "a"}, **keyed)) == ("default", 16)


def test_configs_are_compared_once_each(tuned, modelled, make_row):
    modelled(b16=10.0, b32=5.0)
    tuned(*(make_row(64, 512 + 8 * step, 256, block=32) for step in range(1, 20)))
    tuner.lookup(PROBLEM, H200)
    offers = resolver().explanation(PROBLEM, H200)[2].offers
    assert [offer.row.config for offer in offers] == [Config("toy", BLOCK_SIZE_M=32, num_warps=4)]
    assert all(offer.distance <= REACH for offer in offers)
