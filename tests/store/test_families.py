"""Families kept, read back, merged and copied."""

from __future__ import annotations

import dataclasses
import sqlite3
from contextlib import closing

import pytest

from tuner.errors import ProblemError, StoreError
from tuner.kernel.config import Config
from tuner.lookup.database import read_winners
from tuner.problem import Problem
from tuner.problem.family import Check, Family, Range
from tuner.store import extract as extract_module
from tuner.store.extract import extract
from tuner.store.merge import merge
from tuner.store.records import Outcome, State, Trial, Verdict
from tuner.store.store import Store
from tuner.tables.export import select

GROUP = Problem(1, 2048, 1024, dtype="bf16", layout="nt")
FAMILY = Family(GROUP, (Range(1, 16, 16, "measured"), Range(17, 64, 64, "estimated")), Check(3, 1.004, 1.01))
CONFIG = Config(
    "pointer", BLOCK_SIZE_M=16, BLOCK_SIZE_N=256, BLOCK_SIZE_K=64, GROUP_SIZE_M=8, num_stages=3, num_warps=8
)


@pytest.fixture
def tuned(store, run, kernel):
    for m in (16, 64):
        problem = FAMILY.at(m)
        store.record(run, [Trial(problem, CONFIG, kernel, Outcome(State.COMPLETE, median_us=20.0))])
        store.decide(run, problem, kernel, Verdict(CONFIG, 20.0, None, None, ties=(CONFIG,)))
    store.record_family(run, FAMILY)
    return store


def test_a_family_is_read_back_as_it_was(tuned, device):
    (found,) = tuned.families(device_slug=device.slug)
    assert (found.family, found.device) == (FAMILY, device)
    assert tuned.families(device_slug="another") == []


def test_a_run_records_a_family_once(tuned, run):
    with pytest.raises(StoreError):
        tuned.record_family(run, FAMILY)


def test_the_family_decided_last_comes_first_though_a_merge_brought_another_later(tuned, database, device, environment):
    another = tuned.begin_run(device, environment, argv=[], host="node2")
    older = Family(GROUP, (Range(1, 64, 64, "measured"),))
    tuned.record_family(another, older)
    with closing(sqlite3.connect(database)) as plain, plain:
        plain.execute("UPDATE family SET decided_at = '2026-01-31T12:00:00Z' WHERE family_id = 2")
        plain.execute("UPDATE family SET decided_at = '2026-01-31T12:00:01Z' WHERE family_id = 1")
    assert [found.family for found in tuned.families()] == [FAMILY, older]
    assert [found.ranges for found in read_winners(database, device.slug).families] == [FAMILY.ranges, older.ranges]


def test_what_ships_is_what_was_decided_last_under_whichever_versions(tuned):
    older = tuned.winners()[0]
    before = dataclasses.replace(older.environment, triton="3.6.0")
    newer = dataclasses.replace(older, environment=before, decided_at="9999-01-01T00:00:00Z")
    for order in ([older, newer], [newer, older]):
        (table,) = select(order).tables
        assert [row.made.environment for row in table.rows] == [before]


def test_a_winner_says_which_configs_tied(tuned):
    assert [winner.tied for winner in tuned.winners()] == [(CONFIG,), (CONFIG,)]


def test_families_are_merged_once_and_copied_with_their_winners(tuned, database, tmp_path, device):
    other = tmp_path / "other.db"
    for _ in range(2):
        merge(str(other), [str(database)])
    with Store.open(str(other)) as store:
        assert [found.family for found in store.families()] == [FAMILY]
    for slugs, kept in (([device.slug], [FAMILY]), (["another"], [])):
        with Store.open(extract(str(database), tmp_path / "small", slugs), read_only=True) as store:
            assert [found.family for found in store.families()] == kept


def test_a_copy_does_not_read_every_winner_for_each_trial_that_goes(store, run, kernel, device, tmp_path, monkeypatch):
    steps = []  # a thousand of SQLite's each

    def counted(connection, *rest):
        driver = connection.connection.driver_connection
        driver.set_progress_handler(lambda: steps.append(1), 1000)
        thin_out(connection, *rest)
        driver.set_progress_handler(None, 0)

    configs = [CONFIG.replace(BLOCK_SIZE_M=m) for m in range(7, 17)]
    with store.in_one_transaction():
        for m in range(1, 301):
            tried = [Trial(FAMILY.at(m), each, kernel, Outcome(State.COMPLETE, median_us=20.0)) for each in configs]
            store.record(run, tried)
            store.decide(run, FAMILY.at(m), kernel, Verdict(CONFIG, 20.0, None, None, ties=(CONFIG,)))
    thin_out = extract_module._thin_out
    monkeypatch.setattr(extract_module, "_thin_out", counted)
    with Store.open(extract(store.location, tmp_path / "small", [device.slug]), read_only=True) as copy:
        assert (copy.count_trials(), len(copy.winners())) == (300, 300)
    assert len(steps) < 500  # 93, and 2,572 where the winners are read for each of 2,700 trials


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ((), "at least one range"),
        (((5, 4),), "5-4 is empty"),
        (((1, 4), (4, 8)), "1-4 and 4-8 overlap"),
        (((1, 4), (6, 8)), "1-4 and 6-8 leave a gap"),
        (((1, 2**31),), "M must be from 1 to"),
    ],
)
def test_ranges_follow_one_another(ranges, said):
    with pytest.raises(ProblemError, match=said):
        Family(GROUP, tuple(Range(*each, each[-1], "measured") for each in ranges))
