"""The view for people with a SQL prompt: read by plain sqlite3."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import overlapping
import pytest

from tuner.kernel.config import Config
from tuner.lookup.database import read_winners
from tuner.problem import Problem
from tuner.problem.family import Family, Range
from tuner.store.merge import merge
from tuner.store.records import Outcome, State, Trial, Verdict
from tuner.store.store import Store


def rows(database: Path, query: str = "SELECT * FROM tuned_gemm ORDER BY m, n, k") -> list[dict[str, Any]]:
    with closing(sqlite3.connect(database)) as plain:
        plain.row_factory = sqlite3.Row
        return [dict(row) for row in plain.execute(query)]


@pytest.fixture
def decide(store, run, kernel):
    def decide(problem: Problem, config: Config, **figures: float | None) -> None:
        store.record(run, [Trial(problem, config, kernel, Outcome(State.COMPLETE, median_us=20.0))])
        figures = {"median_us": 20.0, "default_us": None, "vendor_us": None, **figures}
        store.decide(run, problem, kernel, Verdict(config, **figures, ties=(config,)))

    return decide


CONFIG = Config(
    "pointer", BLOCK_SIZE_M=128, BLOCK_SIZE_N=256, BLOCK_SIZE_K=64, GROUP_SIZE_M=8, num_stages=3, num_warps=8
)


def test_a_winner_is_one_flat_row(database, decide, device):
    decide(Problem(4096, 2048, 1024, dtype="bf16", layout="nt"), CONFIG, default_us=25.0, vendor_us=18.0)
    (row,) = rows(database)
    assert row == {
        "gpu": "NVIDIA H200",
        "device": device.slug,
        "arch": "sm_90",
        "m": 4096,
        "first_m": 4096,
        "last_m": 4096,
        "n": 2048,
        "k": 1024,
        "dtype": "bfloat16",
        "b_dtype": "bfloat16",
        "out_dtype": "bfloat16",
        "layout": "nt",
        "aligned": 1,
        "epilogue": "none",
        "precision": "default",
        "kernel": "pointer",
        "kernel_version": 1,
        "BLOCK_SIZE_M": 128,
        "BLOCK_SIZE_N": 256,
        "BLOCK_SIZE_K": 64,
        "GROUP_SIZE_M": 8,
        "SPLIT_K": None,
        "num_stages": 3,
        "num_warps": 8,
        "parameters": CONFIG.parameters_json,
        "us": 20.0,
        "tflops": pytest.approx(2 * 4096 * 2048 * 1024 / 20e-6 / 1e12),
        "vs_default": 1.25,
        "vs_vendor": 0.9,
        "ties": 1,
        "triton": "3.7.1",
        "torch": "2.13.0",
        "backend": "cuda 13.0",
        "driver": "580.65",
        "protocol": 1,
        "tool_version": row["tool_version"],
        "decided_at": row["decided_at"],
    }


def test_only_current_winners_are_there(database, decide):
    problem = Problem(64, 64, 64)
    decide(problem, CONFIG)
    decide(problem, CONFIG.replace(BLOCK_SIZE_M=64))
    assert [row["BLOCK_SIZE_M"] for row in rows(database)] == [64]


def test_what_was_not_measured_is_null(database, decide):
    decide(Problem(64, 64, 64), Config("gemv", ROWS=4))
    (row,) = rows(database)
    assert [row[name] for name in ("vs_default", "vs_vendor", "BLOCK_SIZE_M", "num_warps")] == [None] * 4


def test_the_rate_of_a_huge_problem_does_not_overflow(database, decide):
    decide(Problem(2**31 - 1, 2**31 - 1, 2**31 - 1), CONFIG)
    assert rows(database)[0]["tflops"] == pytest.approx(2 * (2**31 - 1) ** 3 / 20e-6 / 1e12)


def test_ops_that_are_no_gemm_are_not_there(database, decide):
    decide(Problem(64, 64, 64, op="softmax"), CONFIG)
    assert rows(database) == []


def test_a_question_of_a_person_is_one_line_of_sql(database, decide):
    decide(Problem(16, 4096, 4096, dtype="bf16"), CONFIG, vendor_us=10.0)
    decide(Problem(4096, 4096, 4096, dtype="bf16"), CONFIG, vendor_us=22.0)
    slower = rows(database, "SELECT m, n, k FROM tuned_gemm WHERE vs_vendor < 1 AND dtype = 'bfloat16'")
    assert slower == [{"m": 16, "n": 4096, "k": 4096}]


def test_the_view_the_store_and_a_serving_process_see_the_same_winners(database, store, decide, device, run, kernel):
    for m, median_us in ((16, 5.0), (64, 20.0)):
        decide(Problem(m, 2048, 1024, dtype="bf16", layout="nt"), CONFIG, median_us=median_us, default_us=25.0)
    again = Problem(64, 2048, 1024, dtype="bf16", layout="nt")
    store.decide(run, again, kernel, Verdict(CONFIG, 10.0, 25.0, None, (CONFIG,)))  # supersedes the one before
    served = {row.problem: (row.config, row.median_us, row.ties) for row in read_winners(database, device.slug).rows}
    assert {each.problem: (each.config, each.median_us, each.ties) for each in store.winners()} == served
    assert {(row["m"], row["us"], row["ties"]) for row in rows(database)} == {(16, 5.0, 1), (64, 10.0, 1)}
    assert len(served) == 2


def test_a_row_says_from_which_m_on_it_serves_its_family(database, store, run, decide):
    for m in (16, 64):
        decide(Problem(m, 2048, 1024, dtype="bf16", layout="nt"), CONFIG)
    family = Problem(1, 2048, 1024, dtype="bf16", layout="nt")
    store.record_family(run, Family(family, (Range(1, 16, 16, "measured"), Range(17, 80, 64, "estimated"))))
    assert [(row["first_m"], row["m"], row["last_m"]) for row in rows(database)] == [(1, 16, 16), (17, 64, 80)]


def test_a_winner_that_serves_several_ranges_has_a_row_for_each(database, store, run, decide):
    for m in (512, 2048):
        decide(Problem(m, 2048, 1024, dtype="bf16", layout="nt"), CONFIG)
    spans = ((257, 400, 2048), (401, 512, 512), (513, 2048, 2048), (2049, 4096, 512))
    store.record_family(run, Family(GROUP, tuple(Range(*each, "estimated") for each in spans)))
    (decided,) = store.families()
    assert [each[:3] for each in decided.family.ranges] == [*spans]
    found = sorted((row["first_m"], row["last_m"], row["m"]) for row in rows(database))
    assert found == [*spans]


GROUP = Problem(1, 2048, 1024, dtype="bf16", layout="nt")
OLDER = Family(GROUP, (Range(1, 16, 16, "measured"), Range(17, 64, 64, "measured")))
NEWER = Family(GROUP, (Range(1, 48, 48, "measured"), Range(49, 64, 64, "measured")))


def tuned_at(path: Path, when: str, family: Family, run: tuple[Any, ...], kernel: Any) -> None:
    """Make a database of one family that was decided at a time, with the winners of its rows."""
    with Store.open(str(path)) as store:
        begun = store.begin_run(*run, argv=[], host="")
        for each in family.ranges:
            problem = family.at(each.row_m)
            store.record(begun, [Trial(problem, CONFIG, kernel, Outcome(State.COMPLETE, median_us=20.0))])
            store.decide(begun, problem, kernel, Verdict(CONFIG, 20.0, None, None, ties=(CONFIG,)))
        store.record_family(begun, family)
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("UPDATE family SET decided_at = ?", (when,))


@pytest.mark.parametrize("newer_first", [False, True])
def test_the_family_decided_last_stands_in_whatever_order_databases_are_merged(
    tmp_path, device, environment, kernel, newer_first
):
    parts = [tmp_path / "older.db", tmp_path / "newer.db"]
    for path, family, day in zip(parts, (OLDER, NEWER), ("01", "31"), strict=True):
        tuned_at(path, f"2026-01-{day}T12:00:00Z", family, (device, environment), kernel)
    destination, source = reversed(parts) if newer_first else parts
    merge(str(destination), [str(source)])
    # M = 16 has a row of its own still, and the family decided last makes no other M of it.
    found = [(row["first_m"], row["m"], row["last_m"]) for row in rows(destination)]
    assert found == [(16, 16, 16), (1, 48, 48), (49, 64, 64)]


def test_a_family_of_fewer_ms_leaves_the_older_one_what_it_does_not_hold(database, store, device, environment, decide):
    for m in (16, 64, 512):
        decide(GROUP.with_m(m), CONFIG)
    for ranges in (((1, 16, 16), (17, 512, 512)), ((1, 64, 64),)):
        begun = store.begin_run(device, environment, argv=[], host="")
        store.record_family(begun, Family(GROUP, tuple(Range(*each, "measured") for each in ranges)))
    found = [(row["first_m"], row["m"], row["last_m"]) for row in rows(database)]
    assert found == [(16, 16, 16), (1, 64, 64), (65, 512, 512)]


def test_a_family_holds_for_its_device_under_every_environment(database, store, device, environment, decide, kernel):
    decide(GROUP.with_m(64), CONFIG)
    begun = store.begin_run(device, replace(environment, triton="3.8.0"), argv=[], host="")
    store.record_family(begun, Family(GROUP, (Range(1, 64, 64, "measured"),)))
    assert [(row["triton"], row["first_m"], row["last_m"]) for row in rows(database)] == [("3.7.1", 1, 64)]


def test_however_families_overlap_the_view_shows_the_ranges_that_lookups_use(store):
    overlapping.fill(store)
    assert overlapping.shown(store) == overlapping.expected(store)


def test_a_range_may_end_at_the_largest_m(database, store, run, decide):
    largest = 2**31 - 1
    decide(GROUP.with_m(largest), CONFIG)
    store.record_family(run, Family(GROUP, (Range(1, largest, largest, "measured"),)))
    assert [(row["first_m"], row["last_m"]) for row in rows(database)] == [(1, largest)]
