from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tuner.errors import StoreError
from tuner.store import health, schema
from tuner.store.backup import backup_file
from tuner.store.store import Store


@pytest.fixture
def filled(store, database, run, make_trial) -> Path:
    store.record(run, [make_trial(16), make_trial(32)])
    return database


def change(database: Path, script: str) -> None:
    with closing(sqlite3.connect(database)) as plain, plain:
        plain.executescript(script)


def count(path: Path) -> int:
    with Store.open(str(path), read_only=True) as store:
        return store.count_trials()


def test_a_sound_database_has_no_complaints_also_while_it_is_written(filled):
    assert health.check(str(filled)) == health.Health(str(filled), schema.HEAD, schema.HEAD, ())


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("DROP INDEX ix_trial_problem_id", "ix_trial_problem_id"),
        ("DROP INDEX ix_winner_current", "ix_winner_current"),
        ("ALTER TABLE run ADD COLUMN mood TEXT", "mood"),
        ("ALTER TABLE trial DROP COLUMN power_w", "power_w"),
        ("DROP VIEW tuned_gemm", "missing: view tuned_gemm"),
        ("CREATE TABLE notes (id)", "notes"),
        (
            "PRAGMA ignore_check_constraints = ON; UPDATE trial SET state = 'WON'",
            "damaged: CHECK constraint failed in trial",
        ),
        ("DELETE FROM problem", "row 1 of trial refers to a row of problem that is not there"),
        ("UPDATE alembic_version SET version_num = '9999'", "upgrade triton-tuner"),
    ],
)
def test_each_fault_of_a_database_is_named_in_one_line(filled, script, complaint):
    change(filled, script)
    complaints = health.check(str(filled)).complaints
    assert any(complaint in found for found in complaints), complaints
    assert not any("\n" in found for found in complaints)


def test_a_copy_taken_while_a_run_writes_is_whole(filled, store, run, make_trial):
    copy = backup_file(filled, revision=schema.HEAD)
    store.record(run, [make_trial(64)])
    assert (count(copy), count(filled)) == (2, 3)
    assert copy.parent == filled.parent
    assert copy.name.startswith(f"tuner.{schema.HEAD}.20")
    assert copy.name.endswith("Z.db")
    assert health.check(str(copy)).complaints == ()


def test_a_copy_goes_to_a_named_file_or_into_a_folder(filled, tmp_path):
    assert backup_file(filled, revision="0001", destination=tmp_path / "copy.db") == tmp_path / "copy.db"
    assert backup_file(filled, revision="0001", destination=tmp_path).parent == tmp_path


def test_a_copy_replaces_nothing(filled, tmp_path):
    taken = tmp_path / "precious"
    taken.write_text("mine")
    with pytest.raises(StoreError, match="precious is there already: name another file"):
        backup_file(filled, revision="0001", destination=taken)
    assert taken.read_text() == "mine"


def test_a_copy_that_cannot_be_written_leaves_nothing(filled, tmp_path):
    with pytest.raises(StoreError, match="could be written to"):
        backup_file(filled, revision="0001", destination=tmp_path / "absent" / "copy.db")
    assert not (tmp_path / "absent").exists()
