"""`tuner merge`: what it says and how it exits; what it does is in tests/store/test_merge.py."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tuner.store import schema

FIXTURE = Path(__file__).parents[1] / "store" / "fixtures" / f"{schema.HEAD}.db"


@pytest.fixture
def other(tmp_path) -> Path:
    """The same places, decided later by other runs for other configs."""
    path = Path(shutil.copy(FIXTURE, tmp_path / "other.db"))
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("UPDATE run SET uuid = 'other ' || uuid")
        plain.execute("UPDATE winner SET decided_at = '2099-01-01T00:00:00Z' WHERE superseded_by IS NULL")
        plain.execute("""UPDATE config SET parameters = '{"BLOCK_SIZE_M":7}', hash = 'h' || config_id""")
    return path


def test_it_says_what_each_source_brought_and_what_is_current(tuner, tmp_path):
    path = tmp_path / "all.db"
    code, out, err = tuner("merge", path, FIXTURE, shutil.copy(FIXTURE, tmp_path / "copy.db"))
    assert (code, err) == (0, "")
    first, second, last = out.splitlines()
    assert first.startswith(f"{FIXTURE}: ")
    assert " runs, " in first
    assert second == f"{tmp_path / 'copy.db'}: nothing new"
    assert last.startswith(f"{path}: ")
    assert last.endswith("current winners, 0 replaced")


def test_a_conflict_is_a_line_on_stderr_and_a_count_in_json(tuner, tmp_path, other):
    path = shutil.copy(FIXTURE, tmp_path / "all.db")
    code, out, err = tuner("merge", path, other, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["conflicts"]["winner"] == document["replaced"] == len(err.splitlines()) > 0
    assert all(line.startswith("winner: matmul ") and f"of {other} " in line for line in err.splitlines())
    assert document["added"][0]["rows"]["winner"] >= document["replaced"]
    code, out, err = tuner("merge", path, other, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["conflicts"] == {"winner": 0, "trial": 0, "device": 0}


def test_a_source_that_cannot_be_used_is_one_line_and_exit_code_1(tuner, tmp_path):
    (tmp_path / "not.db").write_bytes(b"text" * 100)
    code, out, err = tuner("merge", tmp_path / "all.db", FIXTURE, tmp_path / "not.db")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert "not.db: not a SQLite database: name another as SRC (" in err
    assert not (tmp_path / "all.db").exists()


def test_advice_names_the_argument_that_is_meant(tuner, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("not.db").write_bytes(b"text" * 100)
    for given, said in (
        (("not.db", FIXTURE), "not.db: not a SQLite database: name another as DEST ("),
        (("not.db/all.db", FIXTURE), "not.db/all.db: not.db is not a folder: name another as DEST"),
        (("all.db", "gone.db"), "no database at gone.db: `tuner run` makes one, or name another as SRC"),
    ):
        code, out, err = tuner("merge", *given)
        assert (code, out, len(err.splitlines())) == (1, "", 1)
        assert said in err
        assert "--db" not in err


def test_no_source_or_the_destination_itself_is_wrong_usage(tuner, tmp_path):
    path = shutil.copy(FIXTURE, tmp_path / "all.db")
    assert tuner("merge", path)[0] == 2
    assert tuner("merge", path, path)[0] == 2


def test_tables_are_pointed_to_the_command_that_unites_them(tuner, tmp_path):
    table = tmp_path / "matmul--a-gpu.json"
    table.write_text('{"format": "triton-tuner table"}')
    for given in (("new.db", table), (table, FIXTURE), ("new.db", tmp_path)):
        code, _, errors = tuner("merge", *given)
        assert code == 2
        assert "is no database: tuner merge unites databases; for tables type tuner import" in errors
    assert not Path("new.db").exists()
