"""A family whose binaries do not ship: at its second range of Ms all are made ready, and no other M up to 256 waits."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from tuner.kernel.config import Config
from tuner.lookup import misses
from tuner.problem import Problem

SHUFFLED = random.Random(0).sample(range(1, 257), 256)
EVERY = [20, 40, *(m for m in SHUFFLED if m not in (20, 40))]
"""Of two ranges first."""


@pytest.fixture(scope="module")
def called(stub):
    """A kind of call, how it is run, and the Ms."""
    return lambda kind, how, *ms, **changed: stub.run("compile_ahead.py", kind, how, json.dumps(ms), **changed)


def what(launch):
    """A launch without its addresses, which come first in what the stub makes of a descriptor."""
    numbers = [param[8:] if len(param) == 128 else param for param in launch.params if len(param) != 8]
    return launch.name, launch.grid, launch.block, launch.shared_bytes, numbers


def needed(report):
    """What was made, and the formula and rules asked for, at the first call, at the second and at all others."""
    first, second, *others = report.printed["calls"]
    return [first], [second], [call for call in others if call["made"] or call["asked"] or call["ruled"]]


@pytest.mark.parametrize(
    "kind", ["half", *(pytest.param(each, marks=pytest.mark.long) for each in ("scaled", "bmm", "gated"))]
)
def test_after_a_second_range_no_m_up_to_256_compiles_or_asks_formula_or_rules(called, kind):
    report = called(kind, "usual", *EVERY)
    (first,), (second,), others = needed(report)
    assert first["made"] == 1
    assert second["made"] >= 1
    assert second["asked"] > first["asked"]
    assert others == []
    assert len(report.launches) == 256
    assert len(report.loads) == first["made"] + second["made"]


def test_a_new_m_of_a_prepared_family_is_launched_by_an_earlier_ones_plan(called):
    report = called("half", "usual", *EVERY)
    assert sum(call["looked"] for call in report.printed["calls"]) < 32


def test_one_range_asks_and_compiles_for_itself_alone(called):
    report = called("half", "usual", 20, 32, 17, 20)
    assert [call["asked"] for call in report.printed["calls"]] == [2, 0, 0, 0]
    assert len(report.loads) == 1


def test_ms_beyond_256_prepare_nothing_until_one_below_is_called(called):
    report = called("half", "usual", 512, 4096, 300, 257, 40, 7)
    assert [call["asked"] for call in report.printed["calls"][:4]] == [2, 2, 2, 2]
    assert [call["asked"] for call in report.printed["calls"][4:]] == [2 * 11 - 1, 0]


def test_launches_and_what_is_logged_are_those_of_a_process_that_prepares_nothing(called):
    prepared, alone = called("half", "usual", *EVERY), called("half", "alone", *EVERY)
    assert [*map(what, prepared.launches)] == [*map(what, alone.launches)]
    assert prepared.stderr == alone.stderr
    assert sum(call["asked"] for call in alone.printed["calls"]) == sum(c["asked"] for c in prepared.printed["calls"])


def test_misses_are_counted_for_what_is_called(called, tmp_path):
    record = tmp_path / "misses.json"
    called("half", "misses", 20, 40, 41, 1, MISSES=str(record))
    found = misses.load(record).problems("nvidia-h200-sm90-132")
    assert {str(problem): calls for problem, calls in found.items()} == {
        "matmul 17-32x256x256 float16 nt": 1,
        "matmul 33-48x256x256 float16 nt": 2,
        "matmul 1x256x256 float16 nt": 1,
    }


def test_what_does_not_compile_ahead_is_left_to_its_own_call(called):
    broken, alone = called("half", "broken", *EVERY), called("half", "alone", *EVERY)
    assert [*map(what, broken.launches)] == [*map(what, alone.launches)]
    assert needed(broken)[2] != []


def test_a_config_that_cannot_be_loaded_gives_way_at_its_own_call(called):
    ms, less = (2, 40, 41, 200, 100, 1), {"CUDA_STUB_SHARED": "32768"}
    prepared, alone = called("half", "usual", *ms, **less), called("half", "alone", *ms, **less)
    assert "failed at its first launch in this process: OutOfResources" in alone.stderr
    assert prepared.stderr == alone.stderr
    assert [*map(what, prepared.launches)] == [*map(what, alone.launches)]


def test_a_strict_process_asks_for_what_it_calls_alone(called):
    report = called("half", "usual", 20, 40, 200, TUNER_STRICT="1")
    assert [(call["made"], call["asked"]) for call in report.printed["calls"]] == [(0, 2)] * 3
    assert report.loads == ()


def test_operands_that_lie_otherwise_get_the_formulas_answers_ahead_and_their_binaries_when_called(called):
    report = called("unaligned", "usual", 20, 200, 1)
    assert [call["asked"] for call in report.printed["calls"]] == [2, 2 * 11 - 3, 0]


TILE = {"BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1, "num_stages": 2, "num_warps": 4, "launch_pdl": False}


@pytest.fixture(scope="module")
def tables(make_rows, make_family, tmp_path_factory):
    """Tables without binaries: a product's family of four ranges, the last two beyond 256, and a norm's of one."""
    folder, kind = tmp_path_factory.mktemp("tables"), {"layout": "nt"}
    product, norm = Problem(1, 256, 256, **kind), Problem(1, 256, 1, op="rms_norm", extras={"eps": 1e-5})
    lasts = (16, 64, 300, 2000)
    rows = {product.with_m(m): Config("pointer", **TILE, BLOCK_SIZE_M=16 << at) for at, m in enumerate(lasts)}
    replace(make_rows(rows), families=(make_family(*lasts, problem=product),)).write(folder)
    config = Config("rms_norm_whole", BLOCK_SIZE_M=1, num_warps=4, launch_pdl=True)
    replace(make_rows({norm.with_m(512): config}), families=(make_family(512, problem=norm),)).write(folder)
    return {"TUNER_TABLES": str(folder)}


def test_a_tuned_family_without_binaries_compiles_all_of_them_at_its_second_range(called, tables):
    report = called("half", "usual", 5, 7, 40, *SHUFFLED, **tables)
    first, same, second, *others = report.printed["calls"]
    assert "no tuned config" not in report.stderr
    assert (first["made"], same["made"], second["made"]) == (1, 0, 2)
    assert not any(call["made"] for call in others)
    assert sum(call["looked"] for call in others) < 8, "a new M of a known range is launched by an earlier one's plan"
    alone = called("half", "alone", 5, 7, 40, *SHUFFLED, **tables)
    assert [*map(what, report.launches)] == [*map(what, alone.launches)]


def test_a_tuned_family_compiles_for_itself_alone_where_m_does_not_vary_and_for_prompts(called, tables):
    report = called("half", "usual", 20, 18, 20, 1000, **tables)
    assert [call["made"] for call in report.printed["calls"]] == [1, 0, 0, 1]


def test_a_norm_with_a_program_for_each_row_is_launched_by_an_earlier_plan(called, tables):
    report = called("norm", "usual", 5, 40, *SHUFFLED, **tables)
    assert [call["made"] for call in report.printed["calls"]] == [1] + [0] * 257
    assert sum(call["looked"] for call in report.printed["calls"]) == 3, "the first two, and one row alone"
    assert [launch.grid for launch in report.launches] == [(m, 1, 1) for m in (5, 40, *SHUFFLED)]
    alone = called("norm", "alone", 5, 40, *SHUFFLED, **tables)
    assert [*map(what, report.launches)] == [*map(what, alone.launches)]


def test_threads_that_call_a_family_first_launch_what_one_does(called):
    together, alone = called("half", "threads", *EVERY), called("half", "alone", *EVERY)
    assert Counter(map(str, map(what, together.launches))) == Counter(map(str, map(what, alone.launches)))


def test_a_norm_is_compiled_ahead_and_one_with_an_offset_when_it_is_called(called, make_rows, make_family, tmp_path):
    norm, lasts = Problem(1, 256, 1, op="rms_norm", extras={"eps": 1e-5}), (16, 64, 300)
    config = {"num_warps": 4, "launch_pdl": True}
    rows = {norm.with_m(m): Config("rms_norm_whole", **config, BLOCK_SIZE_M=1 << at) for at, m in enumerate(lasts)}
    replace(make_rows(rows), families=(make_family(*lasts, problem=norm),)).write(tmp_path)
    made = [
        [call["made"] for call in called(kind, "usual", 5, 40, 200, TUNER_TABLES=str(tmp_path)).printed["calls"]]
        for kind in ("norm", "gemma")
    ]
    assert made == [[1, 2, 0], [1, 1, 1]]
