"""Databases united: the same rows whatever the order, one current winner a place, and no half of it when it fails."""

from __future__ import annotations

import itertools
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tuner.errors import SchemaError, StoreError, UsageError
from tuner.hardware.device import KNOWN, Device, Environment
from tuner.problem import Problem
from tuner.store import health, merge_rows, models, schema
from tuner.store.merge import Merged, merge
from tuner.store.records import KernelVersion, State, Verdict
from tuner.store.runs import RunStatus
from tuner.store.store import Store
from tuner.store.writer_lock import sole_writer

H200, B200 = KNOWN["sm_90"], KNOWN["sm_100"]
NEWER = Environment("3.8.0", "2.14.0", "cuda 13.1", "590.1", "3.12.1")
HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN " + sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def dump(path: Path) -> dict[str, list[str]]:
    """Everything a database holds, without its ids: a reference is what it refers to."""
    tables = list(models.metadata.tables.values())
    with closing(sqlite3.connect(path)) as plain:
        plain.row_factory = sqlite3.Row
        rows = {
            table.name: {row[f"{table.name}_id"]: dict(row) for row in plain.execute(f"SELECT * FROM {table.name}")}
            for table in tables
        }

    def content(table: str, key: int) -> dict[str, Any]:
        shown = {name: value for name, value in rows[table][key].items() if name != f"{table}_id"}
        for column in models.metadata.tables[table].columns:
            for reference in column.foreign_keys:
                if shown[column.name] is not None:
                    shown[column.name] = content(reference.column.table.name, shown[column.name])
        return shown

    return {table: sorted(str(content(table, key)) for key in found) for table, found in rows.items()}


@pytest.fixture
def make(tmp_path, environment, kernel, problem, make_trial) -> Callable[..., Path]:
    """A database of one run with a trial a block, the first of which wins; `at` is the second it was decided in."""

    def make(
        name: str,
        *blocks: int,
        at: int = 0,
        on: Device = H200,
        under: Environment = environment,
        by: KernelVersion = kernel,
        of: Problem = problem,
        us: float = 10.0,
    ) -> Path:
        path = tmp_path / name
        with Store.open(str(path)) as store:
            run = store.begin_run(on, under, argv=["tuner", "run", name], host=f"host of {name}")
            trials = [make_trial(block, us + i, on=of, by=by) for i, block in enumerate(blocks)]
            store.record(run, trials)
            store.decide(run, of, by, Verdict(trials[0].config, us, 1.25 * us, None, (trials[0].config,)))
            store.end_run(run, RunStatus.DONE)
        set_last_decision(path, at)
        return path

    return make


def set_last_decision(path: Path, at: int) -> None:
    times = (f"2026-01-31T12:00:{at:02}Z", f"2026-01-31T11:00:{at:02}Z")
    change(path, "UPDATE winner SET decided_at = ? WHERE winner_id = (SELECT max(winner_id) FROM winner)", times[0])
    change(path, "UPDATE trial SET measured_at = ? WHERE run_id = (SELECT max(run_id) FROM run)", times[1])


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute(statement, values)


def unite(destination: Path, *sources: Path) -> Merged:
    return merge(str(destination), [str(source) for source in sources])


def current(path: Path) -> dict[tuple[str, str], tuple[int, float]]:
    """BLOCK_SIZE_M and median of the current winner, by device and Triton."""
    with Store.open(str(path), read_only=True) as store:
        return {
            (winner.device.slug, winner.environment.triton): (winner.config.integer("BLOCK_SIZE_M"), winner.median_us)
            for winner in store.winners()
        }


def test_every_table_of_the_schema_is_brought_over():
    of_living_runs = {models.claim.name}
    of_entities = {table.name for table, _ in merge_rows._ENTITIES}
    brought_over = of_entities | {models.device_alias.name, models.trial.name, models.winner.name}
    assert brought_over == set(models.metadata.tables) - of_living_runs


def test_a_missing_destination_becomes_what_the_source_holds(tmp_path, make):
    source = make("a.db", 16, 32)
    done = unite(tmp_path / "new" / "all.db", source)
    assert dump(tmp_path / "new" / "all.db") == dump(source)
    brought = {"device": 1, "environment": 1, "kernel": 1, "problem": 1, "config": 2, "run": 1, "family": 0}
    assert done.added[0].rows == {**brought, "family_range": 0, "device_alias": 0, "trial": 2, "winner": 1}
    assert (done.winners, done.replaced, done.conflicts) == (1, 0, ())
    assert health.check(str(tmp_path / "new" / "all.db")).complaints == ()


@pytest.mark.long
def test_what_is_united_depends_on_no_order(tmp_path, make, kernel, environment):
    second = replace(kernel, version=2)
    sources = [
        make("a.db", 16, 32, 64, at=3),
        make("b.db", 32, 16, at=1, by=second),
        make("c.db", 64, 128, at=2, under=NEWER),
        make("d.db", 16, at=4, on=replace(H200, name="NVIDIA H200 (other)", memory_bytes=1)),
    ]
    make("d.db", 256, at=9, on=B200)
    shutil.copy(sources[0], tmp_path / "e.db")
    make("e.db", 48, at=8)  # the run of a.db, and a later one
    sources.append(tmp_path / "e.db")
    results = []
    for number, order in enumerate(itertools.permutations(sources)):
        if number % 7 == 0:
            path = tmp_path / f"{number}.db"
            unite(path, *order)
            results.append(dump(path))
        if number % 31 == 0:  # one after the other
            path = tmp_path / f"{number} in steps.db"
            for source in order:
                unite(path, source)
            results.append(dump(path))
    assert len(results) > 20
    assert all(result == results[0] for result in results)
    assert current(path) == {
        (H200.slug, "3.7.1"): (32, 10.0),  # of the newest version of its kernel, though decided first
        (H200.slug, "3.8.0"): (64, 10.0),
        (B200.slug, "3.7.1"): (256, 10.0),
    }


def test_merging_again_changes_nothing(tmp_path, make):
    sources = [make("a.db", 16, 32, at=1), make("b.db", 32, 64, at=2)]
    path = tmp_path / "all.db"
    assert len(unite(path, *sources).conflicts) == 1
    before = path.read_bytes(), dump(path)
    done = unite(path, *sources)
    assert [set(added.rows.values()) for added in done.added] == [{0}, {0}]
    assert (done.winners, done.replaced, done.conflicts) == (1, 0, ())
    assert dump(path) == before[1]
    back = unite(sources[0], path)
    assert back.replaced == 1
    assert dump(sources[0]) == before[1]


def test_the_newest_decision_is_current_and_the_others_are_its_history(tmp_path, make):
    path, other = make("all.db", 16, at=5, us=10.0), make("b.db", 32, at=6, us=20.0)
    done = unite(path, other)
    assert current(path) == {(H200.slug, "3.7.1"): (32, 20.0)}, "never the faster: they were not measured in turns"
    assert (done.winners, done.replaced) == (1, 1)
    with closing(sqlite3.connect(path)) as plain:
        chain = plain.execute("SELECT winner_id, superseded_by FROM winner ORDER BY winner_id").fetchall()
    assert chain == [(1, 2), (2, None)]
    (conflict,) = done.conflicts
    assert conflict.table == "winner"
    assert "\n" not in conflict.text
    place = "matmul 4096x4096x1024 bfloat16 nt on nvidia-h200-sm90-132 under Triton 3.7.1: kept is pointer {"
    assert conflict.text.startswith(place)
    assert re.search(rf"M\":32,.* of {other} \(decided .*; history is pointer .*M\":16,.* of {path} \(", conflict.text)


def test_the_place_of_a_decision_that_comes_is_found_by_an_index(make):
    asked = {}

    def note(_connection, _cursor, statement, values, *_):
        if statement.startswith("SELECT winner.winner_id") and "problem_id = ?" in statement:
            asked[statement] = values

    destination, source = make("a", 16), make("b", 32, at=1)
    event.listen(Engine, "before_cursor_execute", note)
    try:
        unite(destination, source)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    ((statement, values),) = asked.items()
    with closing(sqlite3.connect(destination)) as plain:
        (step,) = plain.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
    assert "USING INDEX ix_winner_current" in step[-1]


def test_an_older_decision_becomes_history_at_once(tmp_path, make):
    path, other = make("all.db", 16, at=5), make("b.db", 32, at=4)
    assert unite(path, other).replaced == 0
    assert current(path) == {(H200.slug, "3.7.1"): (16, 10.0)}


def test_one_config_decided_twice_is_no_conflict(make):
    assert unite(make("all.db", 16, at=5), make("b.db", 16, at=6, us=11.0)).conflicts == ()


def test_decisions_of_one_second_keep_the_order_of_their_database(tmp_path, make):
    for block in (16, 128, 32, 64):
        source = make("a.db", block, at=5)
    for _ in range(2):
        assert unite(tmp_path / "all.db", source).conflicts == ()
        assert dump(tmp_path / "all.db") == dump(source)


def test_a_decision_of_the_newest_kernel_version_outranks_a_newer_one(make, kernel):
    path, other = make("all.db", 16, at=9), make("b.db", 32, at=1, by=replace(kernel, version=2))
    unite(path, other)
    assert current(path) == {(H200.slug, "3.7.1"): (32, 10.0)}


def test_a_decision_of_a_newer_protocol_outranks_a_newer_one(make):
    path, other = make("all.db", 16, at=9), make("b.db", 32, at=1)
    change(other, "UPDATE run SET protocol = 2")
    unite(path, other)
    assert current(path) == {(H200.slug, "3.7.1"): (32, 10.0)}


@pytest.mark.parametrize(
    "broken", ["state = 'WRONG_RESULT'", "config_id = 2", "run_id = (SELECT max(run_id) FROM run)"]
)
def test_a_decision_without_a_complete_trial_of_its_own_is_outranked_by_any(make, kernel, broken):
    path, other = make("all.db", 16, at=1), make("b.db", 32, at=8, by=replace(kernel, version=2))
    make("b.db", 64, at=9, on=B200)  # another run, on another device
    change(other, "DELETE FROM trial WHERE trial_id = 2") if "run_id" in broken else None
    change(other, "UPDATE winner SET trial_id = 1, superseded_by = NULL") if "run_id" in broken else None
    change(other, f"UPDATE trial SET {broken} WHERE trial_id = 1")
    unite(path, other)
    assert current(path)[H200.slug, "3.7.1"] == (16, 10.0)


def test_environments_and_devices_keep_winners_of_their_own(make):
    path = make("all.db", 16, at=1)
    done = unite(path, make("b.db", 32, at=2, under=NEWER), make("c.db", 64, at=3, on=B200))
    assert set(current(path)) == {(H200.slug, "3.7.1"), (H200.slug, "3.8.0"), (B200.slug, "3.7.1")}
    assert done.conflicts == ()


def test_a_run_that_went_on_after_it_was_copied_is_one_run(tmp_path, store, run, database, make_trial):
    store.record(run, [make_trial(16)])
    shutil.copy(database, tmp_path / "copy.db")
    for ending in ("-wal", "-shm"):
        shutil.copy(f"{database}{ending}", f"{tmp_path / 'copy.db'}{ending}")
    store.record(run, [make_trial(32), make_trial(64, state=State.TIMEOUT, message="hung", median_us=None)])
    store.end_run(run, RunStatus.DONE)
    store.close()
    for path, sources in (("1.db", ("copy.db", database)), ("2.db", (database, "copy.db"))):
        done = unite(tmp_path / path, *(tmp_path / source for source in sources))
        assert dump(tmp_path / path) == dump(database)
        assert [added.rows["run"] for added in done.added] == [1, 0]


def test_what_an_export_blanked_comes_back(tmp_path, make):
    source = make("a.db", 16)
    change(source, "UPDATE run SET node = 'a boot'")
    change(source, "UPDATE trial SET gpu_uuid = 'GPU-1'")
    shutil.copy(source, tmp_path / "blanked.db")
    change(tmp_path / "blanked.db", "UPDATE run SET argv = '[]', host = '', node = NULL")
    change(tmp_path / "blanked.db", "UPDATE trial SET gpu_uuid = NULL")
    for name, sources in (("1.db", ("blanked.db", source)), ("2.db", (source, "blanked.db"))):
        merged = unite(tmp_path / name, *(tmp_path / each for each in sources))
        assert merged.conflicts == ()
        assert dump(tmp_path / name) == dump(source)


def test_drivers_names_and_limits_of_one_device_are_reconciled(tmp_path, make):
    other = replace(H200, name="AN H200", memory_bytes=H200.memory_bytes - 1)
    path, source = make("all.db", 16), make("b.db", 32, on=other)
    done = unite(path, source)
    with Store.open(str(path), read_only=True) as store:
        (row,) = store.devices()
    assert row.device == other
    assert row.aliases == (H200.name,)
    (conflict,) = (conflict for conflict in done.conflicts if conflict.table == "device")
    assert f"memory_bytes {H200.memory_bytes} or {other.memory_bytes} in {source}: the smaller is kept" in conflict.text


def test_a_trial_that_was_here_never_changes_and_the_difference_is_said(tmp_path, make):
    source = make("a.db", 16, 32)
    edited = Path(shutil.copy(source, tmp_path / "edited.db"))
    change(edited, "UPDATE trial SET median_us = 0.001, measured_at = '2020-01-01T00:00:00Z'")
    path = Path(shutil.copy(source, tmp_path / "all.db"))
    (conflict,) = unite(path, edited).conflicts
    assert (conflict.table, conflict.text[:1]) == ("trial", "2")
    assert dump(path) == dump(source)
    unite(tmp_path / "1.db", source, edited)
    unite(tmp_path / "2.db", edited, source)
    assert dump(tmp_path / "1.db") == dump(tmp_path / "2.db")


def test_another_run_of_the_same_uuid_is_refused(tmp_path, make):
    path, source = make("all.db", 16), make("b.db", 32, on=B200)
    change(path, "UPDATE run SET uuid = 'same'")
    change(source, "UPDATE run SET uuid = 'same'")
    before = dump(path)
    with pytest.raises(StoreError, match=r"b\.db: its run same is another .*device_id"):
        unite(path, source)
    assert dump(path) == before


def test_merged_trials_are_as_new_as_they_were_measured(tmp_path, make, environment, problem, kernel, make_trial):
    """A source's trial is recorded here later than one that is newer."""
    path, source = make("all.db", 16, at=30, us=10.0), make("b.db", 16, at=20, us=99.0)
    unite(path, source)
    with Store.open(str(path)) as store:
        known = store.settled(H200, environment, problem, [kernel])
        assert known[make_trial(16).config].median_us == 10.0


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04 no database" * 99, "not a SQLite database"),
        (b"", "is empty"),
        (None, "no database at"),
    ],
)
def test_a_source_that_is_no_database_leaves_the_destination_untouched(tmp_path, make, content, message, there):
    path = make("all.db", 16) if there else tmp_path / "folder" / "all.db"
    before = dump(path) if there else None
    source = tmp_path / "source.db"
    if content is not None:
        source.write_bytes(content)
    with pytest.raises(StoreError, match=message) as raised:
        unite(path, make("good.db", 32), source)
    assert str(source) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert path.exists() == there
    assert not there or dump(path) == before


@pytest.mark.parametrize("kind", ["a text", "another program's"])
def test_beside_a_destination_that_is_no_database_nothing_is_left(tmp_path, make, kind):
    source, path = make("a.db", 1), tmp_path / "other"
    if kind == "a text":
        path.write_text("text" * 100)
    else:
        with closing(sqlite3.connect(path)) as plain:
            plain.execute("CREATE TABLE song (title)")
    content, before = path.read_bytes(), sorted(tmp_path.iterdir())
    with pytest.raises(StoreError, match=f"^{path}: not a SQLite database|^{path} is no database of triton-tuner"):
        merge(str(path), [str(source)])
    assert (path.read_bytes(), sorted(tmp_path.iterdir())) == (content, before)


@pytest.mark.parametrize("there", [True, False])
def test_a_source_found_damaged_half_way_leaves_the_destination_untouched(tmp_path, make, make_trial, there):
    source = make("source.db", *range(1, 400))
    content = bytearray(source.read_bytes())
    content[-30_000:] = b"\xff" * 30_000
    source.write_bytes(content)
    path = make("all.db", 16) if there else tmp_path / "all.db"
    before = dump(path) if there else None
    with pytest.raises(StoreError, match=r"source\.db: damaged") as raised:
        unite(path, make("good.db", 32), source)
    assert "\n" not in str(raised.value)
    assert path.exists() == there
    assert not there or dump(path) == before
    assert not list(tmp_path.glob("all.db-*"))


@pytest.mark.parametrize("parents", ["device", "kernel", "problem", "config", "run", "trial"])
def test_what_refers_to_nothing_stays_behind_and_is_named(make, caplog, parents):
    path, source = make("all.db", 16), make("b.db", 32)
    change(source, f"DELETE FROM {parents}")
    before = dump(path)
    unite(path, source)
    assert dump(path)["winner"] == before["winner"]
    assert health.check(str(path)).complaints == ()
    assert re.search(rf"b\.db: \d damaged rows? left out: .*{parents} that is not there.*db check --db", caplog.text)


def test_a_locked_source_is_one_line(tmp_path, make, python):
    source = make("b.db", 32)
    change(source, "PRAGMA journal_mode = DELETE")
    holder = python(HOLD, source, "EXCLUSIVE")
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(StoreError, match=r"b\.db: another process holds its lock"):
        merge(str(tmp_path / "all.db"), [str(source)], busy_timeout_s=0.2)
    assert not (tmp_path / "all.db").exists()


def test_a_source_that_a_sweep_writes_to_can_be_read(tmp_path, make, python):
    source = make("b.db", 32)
    holder = python(HOLD, source, "IMMEDIATE")
    assert holder.stdout.readline() == "held\n"
    with sole_writer(source, str(source)):
        assert unite(tmp_path / "all.db", source).winners == 1


def test_a_destination_that_a_sweep_writes_to_is_refused(tmp_path, make):
    path, source = make("all.db", 16), make("b.db", 32)
    before = dump(path)
    with (
        sole_writer(path, "x"),
        pytest.raises(StoreError, match=r"another `tuner run` or `tuner merge` is writing to .*all\.db"),
    ):
        unite(path, source)
    assert dump(path) == before


def test_a_source_behind_the_head_is_refused_with_the_command(tmp_path, make, monkeypatch):
    source = make("b.db", 32)
    monkeypatch.setattr(schema, "HEAD", "9999")
    with pytest.raises(SchemaError, match=rf"run `tuner db upgrade --db {source}`"):
        unite(tmp_path / "all.db", source)
    assert not (tmp_path / "all.db").exists()


def test_a_source_ahead_of_the_head_is_refused(tmp_path, make):
    source = make("b.db", 32)
    change(source, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaError, match="upgrade triton-tuner"):
        unite(tmp_path / "all.db", source)
    assert not (tmp_path / "all.db").exists()


def test_the_destination_is_no_source(tmp_path, make):
    path = make("all.db", 16)
    (tmp_path / "link.db").symlink_to(path)
    for source in (path, tmp_path / "link.db"):
        with pytest.raises(UsageError, match="is the destination itself"):
            unite(path, source)


def test_a_dispute_on_a_keyed_kernel_names_its_key(make):
    keyed = Problem.keyed("norm", {"N": 1024, "act": "relu"}, dtype="bfloat16")
    done = unite(make("all.db", 16, of=keyed), make("b.db", 32, at=1, of=keyed))
    (conflict,) = done.conflicts
    assert "N=1024" in conflict.text
    assert "relu" in conflict.text
    assert "1x1x1" not in conflict.text
