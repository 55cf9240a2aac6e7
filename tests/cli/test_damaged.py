"""A damaged database is one clear line of every command that opens one."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sqlite3
from contextlib import closing

import pytest

from tuner.cli import main

pytest.importorskip("triton", reason="Triton is not installed: no kernel answers")

COMMANDS = (
    "db check --db {bad}",
    "db current --db {bad}",
    "db backup {out}.copy --db {bad}",
    "db upgrade --db {bad}",
    "show winners --db {bad}",
    "show trials --db {bad} --json",
    "show runs --db {bad}",
    "show devices --db {bad}",
    "show problems --db {bad}",
    "export {out} --db {bad}",
    "verify {bad}",
    "merge {out}.db {bad}",
    "diff {bad} {good}",
    "lookup 64x512x256 --device sm_90 --db {bad}",
)
IN_THE_SCHEMA = "PRAGMA writable_schema = ON; UPDATE sqlite_master SET {} WHERE name = 'winner'"
DAMAGE = {
    "a table's name that is no text": IN_THE_SCHEMA.format("name = CAST(x'ff' AS TEXT)"),
    "a table's SQL that is none": IN_THE_SCHEMA.format("sql = 'CREATE TABLE winner (!!'"),
    "a table on a page that is not there": IN_THE_SCHEMA.format("rootpage = 9999"),
    "a table that is not there": "DROP VIEW tuned_gemm; PRAGMA foreign_keys = OFF; DROP TABLE winner",
    "a column that is not there": "DROP VIEW tuned_gemm; ALTER TABLE run RENAME COLUMN tool_version TO version",
    "a version that is no number": "UPDATE kernel SET version = 'one'",
    "a version below all": "UPDATE kernel SET version = -1",
    "bytes for a string": "UPDATE run SET tool_version = x'fffe'",
    "a word that is no UTF-8": "UPDATE device SET slug = CAST(x'ff' AS TEXT)",
    "ties that are no list": "UPDATE winner SET ties = '-1'",
    "a command line that is no list": "UPDATE run SET argv = 'tuner run'",
    "a size that is none": "UPDATE problem SET n = 'many'",
    "a time that nobody measured": "UPDATE winner SET median_us = 5e-324",
    "a time beyond all": "UPDATE winner SET median_us = 1e308",
    "a problem that cannot be": "UPDATE problem SET extras = '[1'",
}


@pytest.fixture
def rows(make_row):
    return [make_row(m, 512, 256) for m in (64, 128)]


@pytest.mark.parametrize("script", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_database_never_shows_a_traceback(script, tmp_path, make_database, rows, toy, no_tables, capsys):
    places = {"bad": tmp_path / "bad.db", "good": make_database(tmp_path / "good.db", *rows), "out": tmp_path / "out"}
    shutil.copy(places["good"], places["bad"])
    with closing(sqlite3.connect(places["bad"])) as connection, connection:
        connection.executescript(script)
    assert_told(places, capsys)


@pytest.mark.parametrize("table", ["trial", "winner", "config"])
def test_a_page_that_holds_anything_is_told_by_every_command_that_reads_it(
    table, tmp_path, make_database, rows, toy, no_tables, capsys
):
    places = {"bad": tmp_path / "bad.db", "good": make_database(tmp_path / "good.db", *rows), "out": tmp_path / "out"}
    with closing(sqlite3.connect(places["good"])) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    whole = places["good"].read_bytes()
    places["bad"].write_bytes(whole[: (page - 1) * size] + b"\xa5" * size + whole[page * size :])
    assert_told(places, capsys)
    with pytest.raises(SystemExit):
        main(["show", "trials" if table == "trial" else "winners", "--db", str(places["bad"])])
    assert f"{places['bad']}: damaged: restore a backup" in capsys.readouterr().err


def test_a_database_that_a_full_disk_keeps_from_being_read_is_named_with_what_to_do(
    small_disk, make_database, rows, toy, run
):
    path = make_database(small_disk / "tuner.db", *rows)
    other = small_disk / "other"
    with other.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    code, out, error = run("show", "winners", "--db", path)
    assert (code, out, error.count("\n")) == (1, "", 1)
    assert error.startswith(f"tuner: {path}: the disk could not be read or written: ")
    assert "if it is full make room" in error
    other.unlink()
    assert run("show", "winners", "--db", path)[0] == 0


def test_a_database_whose_disk_cannot_be_read_is_named_with_what_to_do(tmp_path, run):
    path = tmp_path / "tuner.db"
    path.symlink_to("/proc/self/mem")  # a regular file, of which nobody can read the first page
    for command in ("show winners", "export out", "db check", "report --out report.html"):
        code, out, error = run(*command.split(), "--db", path)
        assert (code, out) == (1, ""), command
        assert error == f"tuner: {path}: Input/output error: name another with --db or $TUNER_DB\n"
    code, out, error = run("diff", path, path)
    assert (code, out, error) == (2, "", f"tuner: cannot read {path}: Input/output error: name another\n")


def assert_told(places, capsys):
    """Every command has an answer, or one line that names the damaged database, and one of them has such a line."""
    named = False
    for command in COMMANDS:
        with pytest.raises(SystemExit) as ended:
            main(command.format(**places).split())
        assert ended.value.code in (0, 1, 2), command
        out, error = capsys.readouterr()
        assert "Traceback" not in error
        if error.startswith("tuner: "):
            named = True
            assert ended.value.code in (1, 2)
            assert error.count("\n") == 1, error
            assert str(places["bad"]) in error
        if command.startswith("db check"):
            named |= "damaged: " in out
    assert named


def test_the_command_that_says_more_is_typed_as_it_stands(tmp_path, make_database, rows, toy, no_tables, capsys):
    path = make_database(tmp_path / "my tuner's.db", *rows)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(DAMAGE["ties that are no list"])
    with pytest.raises(SystemExit):
        main(["show", "winners", "--db", str(path)])
    advised = shlex.split(capsys.readouterr().err.split("`")[1])
    assert advised == ["tuner", "db", "check", "--db", str(path)]


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (
            "UPDATE kernel SET version = 'one'",
            "row 1 of kernel: kernel.version holds 'one': expected an integer from 0 to 2147483647",
        ),
        (
            "UPDATE trial SET message = x'00' WHERE trial_id = 1",
            "row 1 of trial: trial.message holds b'\\x00': expected a string",
        ),
        (
            "UPDATE winner SET median_us = 5e-324 WHERE winner_id = 1",
            "row 1 of winner: median_us must be from 1e-12 to 1e+15, got 5e-324",
        ),
        (
            "UPDATE trial SET median_us = 1e300 WHERE trial_id = 1",
            "row 1 of trial: median_us must be from 1e-12 to 1e+15, got 1e+300",
        ),
    ],
)
def test_db_check_names_columns_that_hold_what_they_cannot(script, complaint, tmp_path, make_database, rows, capsys):
    path = make_database(tmp_path / "bad.db", *rows)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(script)
    with pytest.raises(SystemExit) as ended:
        main(["db", "check", "--db", str(path)])
    assert ended.value.code == 1
    assert capsys.readouterr().out == f"{path}: damaged: {complaint}\n"
