"""`tuner retime` plays shipped rows again, says what became of each, and keeps figures of the installed versions."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.hardware.device import INTERPRETER, KNOWN, Environment
from tuner.kernel import registry
from tuner.problem import Problem
from tuner.store.store import RunStatus, Store
from tuner.version import __version__

pytest.importorskip("torch", reason="kernels need torch")
pytestmark = pytest.mark.long
KEPT, SLOWER, WRONG, ALONE = (Problem(32, n, 32, dtype="float32") for n in (32, 48, 64, 80))


def retime(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tuner", "retime", *map(str, arguments), "--device", "interpreter"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TUNER_DB": str(cwd / "none.db")}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=200)


@pytest.fixture
def table(tmp_path, make_row, make_table):
    """A row that was slow once, one that was fast, one of another kernel version, one without figures of others."""
    rows = []
    for problem, ratio, newer in ((KEPT, 0.0001, 0), (SLOWER, 1e9, 0), (WRONG, 1.0, 1), (ALONE, None, 0)):
        spec = registry.find("matmul", "pointer" if newer else "tma")  # a table holds one version of a kernel
        config, version = spec.default_config(problem, INTERPRETER), spec.version + newer
        row = make_row(*problem.shape, dtype="float32", config=config, version=version)
        made = replace(row.made, tool_version=__version__)
        rows.append(replace(row, made=made, vs_default=ratio, vs_vendor=ratio))
    return make_table(*rows, device=INTERPRETER).write(tmp_path)


def test_rows_hold_lose_fail_or_cannot_be_judged_and_what_was_measured_is_kept(table, tmp_path):
    db = tmp_path / "kept.db"
    done = retime(table, "--json", "--db", db, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    found = {row["problem"]["n"]: row for row in told["rows"]}
    assert {n: row["state"] for n, row in found.items()} == {32: "holds", 48: "lost", 64: "failed", 80: "unknown"}
    assert found[32]["loss"] < 0 < 1 < found[48]["loss"]
    assert "stale" in found[64]["reason"]
    assert told["counts"] == {"holds": 1, "lost": 1, "failed": 1, "unknown": 1}
    assert told["unplayed"] == 0
    with closing(sqlite3.connect(db)) as connection:
        kept = connection.execute(
            "SELECT n, median_us FROM winner JOIN problem USING (problem_id) ORDER BY n"
        ).fetchall()
    assert kept == [(n, pytest.approx(found[n]["median_us"])) for n in (32, 48, 80)]
    again = retime(table, "--db", db, "--sample", "1", cwd=tmp_path)
    assert "0 new winners under the installed versions" in again.stderr


def test_what_lost_is_raced_again_with_the_shipped_config_among_the_candidates(table, tmp_path):
    db = tmp_path / "raced.db"
    done = retime(table, "--race", "--db", db, "--fail-above", "50%", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "1 failed, 1 holds, 1 lost, 1 unknown" in done.stdout
    assert re.search(r"32x32x32 .*: holds, \d+\.\d% faster$", done.stderr, re.MULTILINE)
    assert re.search(r"32x48x32 .*: lost, \d+\.\d% slower$", done.stderr, re.MULTILINE)
    assert re.search(r"^lost .* \d+\.\d% slower ", done.stdout, re.MULTILINE)
    with closing(sqlite3.connect(db)) as connection:
        trials = dict(
            connection.execute("SELECT n, count(*) FROM trial JOIN problem USING (problem_id) GROUP BY n").fetchall()
        )
        winners = {n for (n,) in connection.execute("SELECT n FROM winner JOIN problem USING (problem_id)")}
    assert winners == {32, 48, 64, 80}
    assert (trials[32], trials[80]) == (1, 1)
    assert min(trials[48], trials[64]) > 1


def test_that_all_rows_hold_is_a_sentence(tmp_path, make_row, make_table):
    spec = registry.find("matmul", "tma")
    rows = []
    for n in (32, 48):
        problem = Problem(32, n, 32, dtype="float32")
        config = spec.default_config(problem, INTERPRETER)
        rows.append(make_row(*problem.shape, dtype="float32", config=config, version=spec.version))
    held = [replace(row, vs_default=None, vs_vendor=0.0001) for row in rows]
    done = retime(make_table(*held, device=INTERPRETER).write(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "all 2 rows hold\n"), done.stderr


@pytest.fixture
def long_table(tmp_path, make_row, make_table):
    """A row that holds, and one that takes the interpreter minutes."""
    spec = registry.find("matmul", "tma")
    rows = []
    for shape in ((16, 16, 16), (2048, 2048, 512)):
        config = spec.default_config(Problem(*shape, dtype="float32"), INTERPRETER)
        row = make_row(*shape, dtype="float32", config=config, version=spec.version)
        rows.append(replace(row, vs_default=None, vs_vendor=0.0001))
    return make_table(*rows, device=INTERPRETER).write(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_shows_and_keeps_the_rows_that_are_done(long_table, stopped_after_one, tmp_path, number):
    db = tmp_path / "kept.db"
    command = [sys.executable, "-m", "tuner", "retime", long_table, "--device", "interpreter", "--json", "--db", db]
    out, _ = stopped_after_one(command, number, TRITON_INTERPRET="1")
    told = json.loads(out)
    assert [row["state"] for row in told["rows"]] == ["holds"]
    assert told["counts"] == {"holds": 1, "lost": 0, "failed": 0, "unknown": 0}
    assert told["unplayed"] == 1
    with closing(sqlite3.connect(db)) as connection:
        assert connection.execute("SELECT n FROM winner JOIN problem USING (problem_id)").fetchall() == [(16,)]


def test_figures_are_kept_beside_a_run_and_a_race_is_refused_before_anything_is_played(tmp_path, make_row, make_table):
    spec = registry.find("matmul", "tma")
    config = spec.default_config(Problem(16, 16, 16, dtype="float32"), INTERPRETER)
    row = make_row(16, 16, 16, dtype="float32", config=config, version=spec.version)
    path = make_table(replace(row, vs_default=None, vs_vendor=0.0001), device=INTERPRETER).write(tmp_path)
    with Store.open(tmp_path / "kept.db") as store, store.sole_writer():
        refused = retime(path, "--db", tmp_path / "kept.db", "--race", cwd=tmp_path)
        assert store.winners() == []
        done = retime(path, "--db", tmp_path / "kept.db", cwd=tmp_path)
        assert [winner.problem for winner in store.winners()] == [row.problem]
        assert [run.status for run in store.runs()] == [RunStatus.DONE]
    assert (done.returncode, done.stdout) == (0, "the row holds\n"), done.stderr
    assert (refused.returncode, refused.stdout) == (1, "")
    (said,) = refused.stderr.splitlines()
    assert said.startswith("tuner: another `tuner run` or `tuner merge` is writing to ")


def test_what_cannot_be_retimed_is_one_line(table, tmp_path, run, make_row, make_table, no_tables):
    of_a_gpu = make_table(make_row(16), device=KNOWN["sm_90"]).write(tmp_path)
    (tmp_path / "empty").mkdir()
    empty = make_table(device=INTERPRETER).write(tmp_path / "empty")
    with Store.open(tmp_path / "unwon.db") as store:
        store.begin_run(KNOWN["sm_90"], Environment("3.7.1", "", "", "", ""), argv=[], host="")
    none = "has no row for interpreter: it has none at all: `tuner run` makes some"
    for arguments, said in (
        ([tmp_path / "unwon.db", "--device", "interpreter"], none),
        ([tmp_path / "nowhere.json"], "is not there"),
        ([empty, "--device", "interpreter"], none),
        ([of_a_gpu, "--device", "interpreter"], f"has no row for interpreter: it has rows for {KNOWN['sm_90'].slug}"),
        ([table, "--fail-above", "much"], "'much' is no share: expected for instance 5%"),
        ([table, "--race"], "--race keeps what it finds: add --db PATH"),
        ([table, "--device", "cuda:0,cuda:1"], "one GPU"),
        ([table, "--db", ""], "'--db': it is empty"),
    ):
        code, out, err = run("retime", *arguments)
        assert (code > 0, out) == (True, "")
        assert said in err.splitlines()[-1]


def test_a_database_that_cannot_be_used_is_told_before_anything_is_played(table, tmp_path):
    (tmp_path / "notes.txt").write_text("no database")
    done = retime(table, "--db", tmp_path / "notes.txt", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "notes.txt" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    with Store.open(tmp_path / "busy.db"):
        pass
    with closing(sqlite3.connect(tmp_path / "busy.db", isolation_level=None)) as another:
        another.execute("BEGIN IMMEDIATE")
        done = retime(table, "--db", tmp_path / "busy.db", cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "busy.db: another process holds its lock" in done.stderr
