"""`tuner db`: every fault is one line and exit code 1."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tuner.store import schema

FIXTURE = Path(__file__).parents[1] / "store" / "fixtures" / f"{schema.HEAD}.db"


@pytest.fixture
def database(tmp_path) -> Path:
    return Path(shutil.copy(FIXTURE, tmp_path / "tuner.db"))


def set_revision(path: Path, revision: str) -> None:
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("UPDATE alembic_version SET version_num = ?", (revision,))


def test_current_prints_the_revision_and_the_head(tuner, database):
    assert tuner("db", "current", "--db", database) == (0, f"{database}: {schema.HEAD} (head {schema.HEAD})\n", "")
    set_revision(database, "9999")
    code, out, _ = tuner("db", "current", "--json", "--db", database)
    assert code == 0
    assert json.loads(out) == {"location": str(database), "revision": "9999", "head": schema.HEAD}


def test_upgrade_makes_a_missing_database_and_then_has_nothing_to_do(tuner, tmp_path):
    path = tmp_path / "new" / "tuner.db"
    assert tuner("db", "upgrade", "--db", path) == (0, f"made {path} at {schema.HEAD}: it was missing or empty\n", "")
    assert tuner("db", "upgrade", "--db", path) == (0, f"{path} is at {schema.HEAD} already\n", "")
    code, out, _ = tuner("db", "upgrade", "--db", path, "--json")
    document = {"location": str(path), "before": schema.HEAD, "after": schema.HEAD, "backup": None}
    assert (code, json.loads(out)) == (0, document)


def test_upgrade_prints_the_copy_it_made(tuner, database, tmp_path, monkeypatch):
    scripts = shutil.copytree(schema.scripts(), tmp_path / "migrations")
    released = schema.HEAD
    next_one = f'revision = "next"\ndown_revision = "{schema.HEAD}"\n\n\ndef upgrade():\n    pass\n'
    (scripts / "versions" / "next.py").write_text(next_one)
    monkeypatch.setattr(schema, "scripts", lambda: scripts)
    monkeypatch.setattr(schema, "HEAD", "next")
    code, out, _ = tuner("show", "winners", "--db", database)
    assert code == 1
    code, out, _ = tuner("db", "upgrade", "--db", database)
    copied, upgraded = out.splitlines()
    assert (code, upgraded) == (0, f"{database}: {released} -> next")
    assert Path(copied.removeprefix("copied to ")).stat().st_size > 0


def test_check_of_a_sound_database_exits_0(tuner, database):
    code, out, err = tuner("db", "check", "--db", database)
    assert (code, out, err) == (0, f"{database}: pages, references and schema are sound\n", "")


def test_check_names_what_is_wrong_and_exits_1(tuner, database):
    with closing(sqlite3.connect(database)) as plain, plain:
        plain.execute("DELETE FROM device_alias")
        plain.execute("DELETE FROM environment")
        plain.execute("DROP VIEW tuned_gemm")
    code, out, _ = tuner("db", "check", "--db", database)
    assert code == 1
    assert "refers to a row of environment that is not there" in out
    assert "missing: view tuned_gemm" in out
    code, out, _ = tuner("db", "check", "--db", database, "--json")
    document = json.loads(out)
    assert (code, document["ok"], document["revision"]) == (1, False, schema.HEAD)
    assert len(document["complaints"]) > 2


def test_backup_prints_where_the_copy_is(tuner, database, tmp_path):
    code, out, _ = tuner("db", "backup", "--db", database)
    assert code == 0
    assert Path(out.strip()).parent == tmp_path
    assert tuner("db", "backup", tmp_path / "copy.db", "--db", database) == (0, f"{tmp_path / 'copy.db'}\n", "")
    assert tuner("db", "check", "--db", tmp_path / "copy.db")[0] == 0
    code, out, err = tuner("db", "backup", tmp_path / "copy.db", "--db", database)
    assert (code, out) == (1, "")
    assert err == f"tuner: {tmp_path / 'copy.db'} is there already: name another file for the backup\n"
    code, out, err = tuner("db", "backup", tmp_path / "copy.db" / "in.db", "--db", database)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert (
        f"could be written to {tmp_path / 'copy.db' / 'in.db'}: there is no folder {tmp_path / 'copy.db'}: make" in err
    )


def test_check_names_what_cannot_be_read_in_json_too(tuner, database):
    content = bytearray(database.read_bytes())
    content[100:2000] = b"\xff" * 1900  # the first page, after the header
    database.write_bytes(content)
    code, out, err = tuner("db", "check", "--db", database, "--json")
    found = json.loads(out)
    assert (code, err, found["ok"], found["revision"], len(found["complaints"])) == (1, "", False, None, 1)
    assert "damaged: restore a backup" in found["complaints"][0]


def test_an_empty_file_has_no_backup(tuner, tmp_path):
    (tmp_path / "empty.db").touch()
    code, out, err = tuner("db", "backup", "--db", tmp_path / "empty.db")
    assert (code, out) == (1, "")
    assert err == f"tuner: {tmp_path / 'empty.db'} is empty, there is nothing to copy: name another with --db\n"
    assert [path.name for path in tmp_path.iterdir()] == ["empty.db"]


@pytest.mark.parametrize("command", ["upgrade", "current", "check", "backup"])
@pytest.mark.parametrize("content", ["garbage", "a folder", "a pipe", "somebody else's", "with Alembic"])
def test_what_is_no_database_of_ours_is_one_line_and_exit_code_1(tuner, tmp_path, command, content):
    path = tmp_path / "tuner.db"
    if content == "garbage":
        path.write_text("not a database at all\n" * 100)
    elif content == "a folder":
        path.mkdir()
    elif content == "a pipe":
        os.mkfifo(path)
    else:
        with closing(sqlite3.connect(path)) as plain, plain:
            plain.execute("CREATE TABLE song (title)")
            if content == "with Alembic":
                plain.execute("CREATE TABLE alembic_version (version_num)")
                plain.execute("INSERT INTO alembic_version VALUES ('0001')")
    before = path.read_bytes() if path.is_file() else None
    code, out, err = tuner("db", command, "--db", path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"tuner: {path}")
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize("place", ["mysql://me:secret@host/x", "~nobody-of-this-name/tuner.db", "/dev/null"])
@pytest.mark.parametrize("command", [("db", "upgrade"), ("db", "check"), ("show", "runs"), ("export", "out")])
def test_a_place_that_holds_no_database_is_one_line_and_exit_code_1(tuner, place, command):
    code, out, err = tuner(*command, "--db", place)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "xpected a path" in err or "is no regular file: expected a database: name another" in err
    assert "secret" not in err


@pytest.mark.parametrize("place", ["./~nobody-of-this-name/tuner.db", "sqlite:///./~nobody-of-this-name/tuner.db"])
def test_a_folder_whose_name_begins_like_a_home_works_behind_a_dot(tuner, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = tuner("db", "upgrade", "--db", place)
    assert (code, err) == (0, "")
    assert (tmp_path / "~nobody-of-this-name" / "tuner.db").is_file()


@pytest.mark.parametrize("command", [("db", "current"), ("db", "check"), ("db", "backup"), ("show", "winners")])
def test_a_missing_database_is_one_line_and_exit_code_1(tuner, tmp_path, command):
    code, out, err = tuner(*command, "--db", tmp_path / "absent.db")
    assert (code, out) == (1, "")
    advice = "`tuner run` makes one, or name another with --db or $TUNER_DB"
    assert err == f"tuner: no database at {tmp_path / 'absent.db'}: {advice}\n"
    assert list(tmp_path.iterdir()) == []


def test_a_newer_schema_is_one_line_and_exit_code_1(tuner, database):
    set_revision(database, "9999")
    for command in (("db", "upgrade"), ("show", "trials")):
        code, out, err = tuner(*command, "--db", database)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "schema 9999, newer than" in err
    code, out, _ = tuner("db", "check", "--db", database)
    assert code == 1
    assert "upgrade triton-tuner" in out


def test_the_environment_names_the_database(database):
    command = [sys.executable, "-m", "tuner", "db", "current"]
    environment = os.environ | {"TUNER_DB": str(database)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{database}: {schema.HEAD} (head {schema.HEAD})\n"
