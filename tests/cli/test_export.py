from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import tuner
from tuner.cli import export
from tuner.errors import UsageError
from tuner.hardware.device import INTERPRETER, KNOWN, Environment
from tuner.kernel.config import Config
from tuner.lookup import table
from tuner.lookup.lookup import resolver
from tuner.moe.layer import OP as EXPERTS
from tuner.problem import Problem
from tuner.problem.family import Check, Range

H200, B200 = KNOWN["sm_90"], KNOWN["sm_100"]

pytestmark = pytest.mark.usefixtures("toy", "no_tables")


@pytest.fixture
def db(tmp_path, make_database, make_row) -> Path:
    (tmp_path / "home").mkdir()
    path = make_database(tmp_path / "home" / "tuner.db", make_row(16), make_row(64, dtype="bf16", layout="nt"))
    make_database(path, make_row(16), device=B200)
    return make_database(path, make_row(16, block=64), device=INTERPRETER)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_one_table_a_device_is_written_and_found_again(tmp_path, run, db, make_row):
    code, out, err = run("export", tmp_path / "new" / "out", "--db", db)
    assert (code, err) == (0, "")
    assert names(tmp_path / "new" / "out") == [f"matmul--{B200.slug}.json", f"matmul--{H200.slug}.json"]
    assert f"matmul--{H200.slug}.json: 2 rows, sha256:" in out
    found = table.load(tmp_path / "new" / "out" / f"matmul--{H200.slug}.json")
    assert set(found.rows) == {make_row(16), make_row(64, dtype="bf16", layout="nt")}
    tuner.use(tmp_path / "new" / "out")
    assert tuner.lookup(Problem(16, 512, 256), H200).rule == "exact"


def test_exporting_twice_gives_the_same_bytes(tmp_path, run, db):
    run("export", tmp_path / "a", "--db", db)
    run("export", tmp_path / "b", "--db", db)
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_date_is_the_newest_winners_own(tmp_path, run, db):
    run("export", tmp_path, "--db", db)
    assert table.load(tmp_path / f"matmul--{H200.slug}.json").date == "2026-01-31T12:00:01Z"


def test_the_interpreter_is_exported_only_by_its_name(tmp_path, run, db):
    assert run("export", tmp_path / "out", "--db", db, "--device", "interpreter")[0] == 0
    assert names(tmp_path / "out") == ["matmul--interpreter.json"]


def test_with_winners_of_the_interpreter_only_it_says_how_to_export_them(tmp_path, run, make_database, make_row):
    path = make_database(tmp_path / "tuner.db", make_row(16), device=INTERPRETER)
    code, out, err = run("export", tmp_path / "out", "--db", path)
    assert (code, out) == (1, "")
    assert "--device interpreter" in err
    assert not (tmp_path / "out").exists()


def test_json_tells_what_was_written(tmp_path, run, db):
    code, out, _ = run("export", tmp_path / "out", "--db", db, "--device", H200.slug, "--json")
    written = json.loads(out)["written"]
    path = tmp_path / "out" / f"matmul--{H200.slug}.json"
    digest = table.load(path).digest
    assert code == 0
    assert written == [
        {"path": str(path), "op": "matmul", "device": H200.slug, "rows": 2, "families": 0, "digest": digest}
    ]


def test_of_two_environments_the_newest_decision_ships(tmp_path, run, db, make_database, make_row):
    environment = Environment("3.8.0", "2.14.0", "cuda 13.1", "590.1", "3.12.1")
    made = dataclasses.replace(make_row().made, environment=environment)
    make_database(db, make_row(16, block=64, made=made))
    code, _, err = run("export", tmp_path / "out", "--db", db, "--device", H200.slug)
    rows = {row.problem.m: row for row in table.load(tmp_path / "out" / f"matmul--{H200.slug}.json").rows}
    assert code == 0
    assert rows[16].config["BLOCK_SIZE_M"] == 64
    assert (rows[16].made.environment.triton, rows[64].made.environment.triton) == ("3.8.0", "3.7.1")
    assert "left out: 1 winner decided again" in err


def test_winners_of_an_older_version_of_a_kernel_do_not_ship(tmp_path, run, db, make_database, make_row):
    make_database(db, make_row(128, version=2))
    code, _, err = run("export", tmp_path / "out", "--db", db, "--device", H200.slug)
    assert code == 0
    assert [row.problem.m for row in table.load(tmp_path / "out" / f"matmul--{H200.slug}.json").rows] == [128]
    assert err == "left out: 2 winners of kernels that have a newer version: tune again with `tuner run`\n"


FORMATS = ("table", "python", "triton", "vllm")


@pytest.mark.parametrize("kind", FORMATS)
def test_where_a_newer_version_of_a_kernel_is_installed_its_winners_do_not_ship(
    tmp_path, run, make_database, make_row, install, toy, kind
):
    parts = {"dtype": "float8_e4m3fn", "layout": "nt", "scaling": "block"}
    sizes = dict.fromkeys(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), 128)
    config = Config("block_scaled", **sizes, LOADS="pointer", num_warps=4, num_stages=3)
    theirs = make_row(16, config=config, **parts)  # of a kernel that is not installed
    db = make_database(tmp_path / "tuner.db", make_row(16), make_row(64), theirs)
    install(dataclasses.replace(toy, version=2))
    code, _, err = run("export", tmp_path / "out", "--db", db, "--format", kind)
    said = "left out: 2 winners of kernels that have a newer version: tune again with `tuner run`\n"
    if kind == "python":
        assert (code, "a lookup would use no row: matmul 16x512x256 float8_e4m3fn" in err) == (1, True)
        return
    assert (code, err) == (0, said)
    if kind == "table":
        assert table.load(tmp_path / "out" / f"matmul--{H200.slug}.json").rows == (theirs,)
    _, out, _ = run("export", tmp_path / "out", "--db", db, "--format", kind, "--json")
    assert json.loads(out)["left_out"]["stale"] == 2


@pytest.mark.parametrize("kind", FORMATS)
def test_where_newer_versions_of_all_kernels_are_installed_nothing_ships(
    tmp_path, run, make_database, make_row, install, toy, kind
):
    db = make_database(tmp_path / "tuner.db", make_row(16), make_row(64))
    install(dataclasses.replace(toy, version=2))
    code, out, err = run("export", tmp_path / "out", "--db", db, "--format", kind)
    said = "2 winners of kernels that have a newer version: tune again with `tuner run`"
    assert (code, out, err) == (1, "", f"tuner: no winner to export: {said}\n")
    assert not (tmp_path / "out").exists()


def test_what_was_exported_has_no_stale_row_by_verify(tmp_path, run, make_database, make_row, install, toy):
    db = make_database(tmp_path / "tuner.db", make_row(16), make_row(64, kernel="other"))
    other = dataclasses.replace(
        toy,
        name="other",
        space=lambda *asked: dataclasses.replace(toy.space(*asked), kernel="other"),
        default_config=lambda *_: Config("other", BLOCK_SIZE_M=16, num_warps=4),
    )
    install(dataclasses.replace(toy, version=2), other)
    assert run("verify", db)[0] == 0
    assert run("export", tmp_path / "out", "--db", db)[0] == 0
    _, out, _ = run("verify", tmp_path / "out")
    assert ": 1 table, 1 row: " in out
    assert "stale" not in out


def test_families_ship_with_their_rows_and_the_one_decided_last_holds_where_two_overlap(
    tmp_path, run, make_database, make_row, make_family
):
    rows = [make_row(m) for m in (16, 64, 256, 512)]
    older, newer = make_family(16, 64, 512), make_family(64, 256, first=17, check=Check(20, 1.004, 1.03))
    db = make_database(tmp_path / "tuner.db", *rows, families=(older, newer))
    code, out, err = run("export", tmp_path / "out", "--db", db)
    assert (code, err) == (0, "")
    assert "4 rows, 3 families, sha256:" in out
    (path,) = (tmp_path / "out").iterdir()
    assert table.load(path).faults == ()
    assert table.load(path).families == (make_family(16), newer, make_family(512, first=257))
    for source in (path, db):
        tuner.use(None)
        tuner.use(source)
        expected = {3: (1, 16), 20: (17, 64), 100: (65, 256), 300: (257, 512)}
        assert {m: resolver().decide(make_row(m).problem, H200).range[:2] for m in expected} == expected
        assert tuner.lookup(make_row(100).problem, H200).regret == 1.004
    assert run("diff", path, db)[0] == 0
    assert json.loads(run("export", tmp_path / "out", "--db", db, "--json")[1])["written"][0]["families"] == 3


def test_a_range_whose_winner_does_not_ship_goes_to_the_next_above(tmp_path, run, make_database, make_row, make_family):
    rows = [make_row(16, version=1), make_row(64, version=2), make_row(256, version=2), make_row(512, version=1)]
    db = make_database(tmp_path / "tuner.db", *rows, families=(make_family(16, 64, 256, 512),))
    assert run("export", tmp_path / "out", "--db", db)[0] == 0
    (path,) = (tmp_path / "out").iterdir()
    (family,) = table.load(path).families
    assert family.ranges == (Range(1, 64, 64, "estimated"), Range(65, 512, 256, "estimated"))


def test_a_package_holds_the_tables_and_the_lines_to_add_are_printed(tmp_path, run, db):
    code, out, _ = run("export", tmp_path / "src", "--db", db, "--package", "mylib.tuned")
    assert code == 0
    assert names(tmp_path / "src" / "mylib") == ["__init__.py", "tuned"]
    assert names(tmp_path / "src" / "mylib" / "tuned") == [
        "__init__.py",
        f"matmul--{B200.slug}.json",
        f"matmul--{H200.slug}.json",
    ]
    assert '[project.entry-points."tuner.tables"]\nmylib = "mylib.tuned"' in out
    assert '"mylib.tuned" = ["*.json"]' in out


def test_a_word_for_several_devices_is_refused_where_captured_kernels_may_be_all_that_ships(db):
    def decided(device):
        return export._decided(str(db), device, is_needed=False, with_experts=False)

    with pytest.raises(UsageError, match="'nvidia' names several devices in"):
        decided("nvidia")
    assert {winner.device.slug for winner in decided("h200")[0]} == {H200.slug}
    assert decided("b300") == ([], [])


@pytest.mark.parametrize("name", ["lnt", "mylib.lnt", "mylib.lnt.tuned"])
def test_a_package_does_not_hide_a_module(tmp_path, run, db, name):
    (tmp_path / "mylib").mkdir()
    for module in (tmp_path / "lnt.py", tmp_path / "mylib" / "lnt.py"):
        module.write_text("ln_bwd = 1")
    before = sorted(tmp_path.rglob("*"))
    code, _, err = run("export", tmp_path, "--db", db, "--package", name)
    assert (code, "lnt.py is a module, which a package " in err) == (2, True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_package_that_is_there_keeps_its_own_files(tmp_path, run, db):
    (tmp_path / "space" / "tuned").mkdir(parents=True)  # a namespace package: it must not become another kind
    (tmp_path / "space" / "tuned" / "__init__.py").write_text("X = 1\n")
    run("export", tmp_path, "--db", db, "--package", "space.tuned")
    assert not (tmp_path / "space" / "__init__.py").exists()
    assert (tmp_path / "space" / "tuned" / "__init__.py").read_text() == "X = 1\n"


@pytest.mark.parametrize(
    "name", ["my-lib.tuned", "mylib..tuned", "", "mylib.class", "1lib", "../mylib", "tuner.tables"]
)
def test_a_name_that_cannot_be_imported_is_wrong_usage(tmp_path, run, db, name):
    code, _, err = run("export", tmp_path / "src", "--db", db, "--package", name)
    assert code == 2
    assert "mylib.tuned" in err
    assert not (tmp_path / "src").exists()


def test_a_database_that_ships_is_one_file_that_opens_immutable(tmp_path, run, db, make_database, make_row):
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE run SET host = 'secret', node = 'secret', argv = '[\"secret\"]'")
        connection.execute("UPDATE trial SET gpu_uuid = 'secret'")
        connection.execute("UPDATE winner SET superseded_by = 2 WHERE winner_id = 1")
    code, out, _ = run("export", tmp_path / "out", "--db", db, "--format", "sqlite", "--device", H200.slug)
    path = tmp_path / "out" / "winners.db"
    assert (code, out) == (0, f"{path}: 1 winner for {H200.slug}\n")
    assert names(tmp_path / "out") == ["winners.db"]
    assert path.read_bytes()[18:20] == b"\x01\x01"  # no write-ahead log
    assert b"secret" not in path.read_bytes()
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as copy:
        counts = {
            name: copy.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in ("winner", "trial", "run", "problem", "config", "kernel", "environment", "device")
        }
        assert set(counts.values()) == {1}, counts
        assert copy.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert copy.execute("PRAGMA foreign_key_check").fetchall() == []
        assert copy.execute("PRAGMA freelist_count").fetchone() == (0,)
        assert copy.execute("SELECT count(*) FROM tuned_gemm").fetchone() == (1,)
    tuner.use(path)
    assert tuner.lookup(Problem(64, 512, 256, dtype="bf16", layout="nt"), H200).rule == "exact"
    assert names(tmp_path / "out") == ["winners.db"]


def test_exporting_a_database_leaves_the_source_as_it_was(tmp_path, run, db):
    def content() -> list[str]:
        with closing(sqlite3.connect(db)) as connection:
            return list(connection.iterdump())

    before = content()
    assert run("export", tmp_path / "out", "--db", db, "--format", "sqlite")[0] == 0
    assert run("export", tmp_path / "out", "--db", db, "--format", "sqlite", "--json")[0] == 0  # again: replaced
    assert content() == before


def test_a_database_never_replaces_itself(tmp_path, run, db):
    moved = db.rename(db.with_name("winners.db"))
    code, _, err = run("export", moved.parent, "--db", moved, "--format", "sqlite")
    assert code == 2
    assert "is the database itself" in err
    with closing(sqlite3.connect(moved)) as connection:
        assert connection.execute("SELECT count(*) FROM winner").fetchone() == (4,)


def test_a_database_replaces_none_that_runs_have_written(tmp_path, run, db):
    (tmp_path / "out").mkdir()
    other = tmp_path / "out" / "winners.db"
    shutil.copy(db, other)
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("UPDATE run SET host = 'here'")
    before = other.read_bytes()
    code, out, err = run("export", other.parent, "--db", db, "--format", "sqlite")
    assert (code, out) == (2, "")
    assert err == f"tuner: {other} is a database that runs have written, no export: name another folder\n"
    assert other.read_bytes() == before


def test_a_package_of_a_database_is_wrong_usage(tmp_path, run, db):
    assert run("export", tmp_path, "--db", db, "--format", "sqlite", "--package", "mylib.tuned")[0] == 2


def test_a_device_is_named_by_a_word_of_its_name(tmp_path, run, db):
    code, _, err = run("export", tmp_path / "out", "--db", db, "--device", "h200")
    assert code == 0, err
    assert [path.name for path in (tmp_path / "out").iterdir()] == [f"matmul--{H200.slug}.json"]


def test_an_unknown_device_lists_the_known_ones(tmp_path, run, db):
    code, _, err = run("export", tmp_path / "out", "--db", db, "--device", "h300")
    assert code == 2
    assert all(device.slug in err for device in (H200, B200, INTERPRETER))


def test_a_database_without_winners_says_what_to_type(tmp_path, run, make_database):
    path = make_database(tmp_path / "tuner.db")
    code, _, err = run("export", tmp_path / "out", "--db", path)
    assert code == 1
    assert f"tuner run --db {path}" in err


def test_a_missing_database_is_one_line_and_is_not_made(tmp_path, run):
    code, _, err = run("export", tmp_path / "out", "--db", tmp_path / "gone.db")
    assert (code, len(err.splitlines())) == (1, 1)
    assert names(tmp_path) == []


@pytest.mark.parametrize("arguments", [[], ["--format", "sqlite"], ["--package", "mylib.tuned"]])
def test_a_file_where_the_folder_should_be_is_one_line_and_stays(tmp_path, run, db, arguments):
    (tmp_path / "file").write_text("mine")
    for where in (tmp_path / "file", tmp_path / "file" / "below"):
        code, _, err = run("export", where, "--db", db, *arguments)
        assert (code, len(err.splitlines())) == (1, 1)
        assert "is not a folder" in err
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments", [(), ("--package", "mylib.tuned"), ("--format", "sqlite"), ("--format", "triton"), ("--json",)]
)
def test_a_full_disk_is_one_line_and_what_was_exported_before_stays_whole(run, db, small_disk, arguments):
    out = small_disk / "out"
    assert run("export", out, "--db", db, *arguments)[0] == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with (small_disk / "fill").open("wb", buffering=0) as fill, contextlib.suppress(OSError):
        while True:
            fill.write(bytes(1024))
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE winner SET median_us = 2 * median_us")
    code, printed, error = run("export", out, "--db", db, *arguments)
    assert (code, printed) == (1, "")
    assert error.startswith("tuner: ")
    assert error.count("\n") == 1
    assert "backup" not in error
    assert ".tmp" not in error
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("arguments", ["", "--format sqlite", "--package mylib.tuned"])
def test_a_folder_that_may_not_be_written_is_one_line(tmp_path, db, arguments):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    for parent in (folder, db.parent, *tmp_path.parents, tmp_path):
        if parent.stat().st_uid == os.getuid():
            parent.chmod(parent.stat().st_mode | 0o055)
    db.chmod(0o644)
    code = f"""
import os, sys
import tuner.cli.export, tuner.store.extract, tuner.tables.export, tuner.tables.package, sqlalchemy.dialects.sqlite
from tuner.kernel import registry
registry.points = lambda: ()  # nobody may not be able to import kernels
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
tuner.cli.main({["export", str(folder), "--db", str(db), *arguments.split()]!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert str(folder) in done.stderr
    assert names(folder) == []


def test_a_copied_database_counts_all_winners_that_it_holds(tmp_path, run, make_database, make_row):
    experts = make_row(1, 1, 1, op=EXPERTS, layout="keyed", extras={"M": 8})
    db = make_database(tmp_path / "tuner.db", make_row(16), experts)
    code, out, err = run("export", tmp_path / "out", "--db", db, "--format", "sqlite")
    assert (code, out, err) == (0, f"{tmp_path / 'out' / 'winners.db'}: 2 winners for {H200.slug}\n", "")
    with closing(sqlite3.connect(tmp_path / "out" / "winners.db")) as copy:
        assert copy.execute("SELECT count(*) FROM winner").fetchone() == (2,)
