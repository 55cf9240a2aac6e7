from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import TableError
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel.config import Config
from tuner.lookup import database
from tuner.lookup.device_winners import by_problem
from tuner.problem import Problem
from tuner.store import schema
from tuner.store.records import KernelVersion, Outcome, State, Trial, Verdict
from tuner.store.store import Store
from tuner.tables.export import select

H200 = KNOWN["sm_90"]
SLUG = H200.slug
FIXTURES = Path(__file__).parents[1] / "store" / "fixtures"
INSERT_AND_LIVE_ON = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("UPDATE winner SET median_us = 1.5")
print("written", flush=True)
sys.stdin.read()
"""
READ_AS_NOBODY = """
import os, sqlite3, sys
from pathlib import Path
from tuner.lookup.database import read_winners  # before: nobody may not read this interpreter's own files
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
if len(sys.argv) > 3:
    sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True).execute("SELECT 1 FROM winner")
print([row.median_us for row in read_winners(Path(sys.argv[1]), sys.argv[2]).rows])
"""
READ_AND_WAIT = """
import sys
from pathlib import Path
from tuner.lookup import database
from tuner.lookup.device_winners import by_problem
from tuner.problem import Problem
make_row, waited = database._row, []
def make_slowly(*given):
    if not waited:
        waited.append(print("reading", flush=True))
        sys.stdin.readline()
    return make_row(*given)
database._row = make_slowly
found = database.read_winners(Path(sys.argv[1]), sys.argv[2])
print(len(found.rows), len(found.families), *found.faults)
"""


def files(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.fixture
def tuned(tmp_path, make_database, make_row) -> Path:
    (tmp_path / "db").mkdir()
    return make_database(tmp_path / "db" / "tuner.db", make_row(16), make_row(64, dtype="e5m2", extras={"w": 3}))


@pytest.fixture
def locked_folder(tuned) -> Callable[[], Path]:
    """The database in a folder where its reader cannot make files; root reads as nobody, for chmod does not stop it."""

    def lock() -> Path:
        tuned.chmod(0o444)
        tuned.parent.chmod(0o555)
        for folder in tuned.parents:
            if folder.stat().st_mode & 0o055 != 0o055:
                folder.chmod(folder.stat().st_mode | 0o055)  # pytest's folders are their owner's alone
        return tuned

    return lock


def read_as_nobody(path: Path, *plain: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", READ_AS_NOBODY, str(path), SLUG, *plain]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_queries_speak_the_schema_that_the_migrations_make():
    assert schema.HEAD == database.REVISION


def test_winners_are_read_as_they_were_decided(tuned, make_row):
    found = database.read_winners(tuned, SLUG)
    assert found.faults == ()
    assert set(found.rows) == {make_row(16), make_row(64, dtype="e5m2", extras={"w": 3})}


def test_what_the_store_decided_is_what_the_runtime_reads(tmp_path, make_row):
    row = make_row(16, epilogue="bias+gelu", extras={"causal": True, "window": 3})
    kernel = KernelVersion("matmul", "toy", 1, "none")
    verdict = Verdict(row.config, row.median_us, 15.0, None, (row.config,))
    outcome = Outcome(State.COMPLETE, median_us=12.0, samples=5)
    with Store.open(str(tmp_path / "tuner.db")) as store:
        run = store.begin_run(H200, row.made.environment, argv=[], host="here")
        store.record(run, [Trial(row.problem, row.config, kernel, outcome)])
        store.decide(run, row.problem, kernel, verdict)
        store.decide(run, row.problem, kernel, verdict)  # supersedes the first
        (found,) = database.read_winners(tmp_path / "tuner.db", SLUG).rows
        (winner,) = store.winners()
    assert (found.problem, found.config, found.kernel_version) == (row.problem, row.config, 1)
    assert found.made.environment == row.made.environment
    assert (found.median_us, found.vs_default, found.vs_vendor, found.ties) == (12.5, winner.vs_default, None, 1)


def test_only_this_devices_current_winners_are_read(tuned, make_database, make_row):
    make_database(tuned, make_row(32), device=INTERPRETER)
    with closing(sqlite3.connect(tuned)) as connection, connection:
        connection.execute("UPDATE winner SET superseded_by = 2 WHERE winner_id = 1")
    assert [row.problem.m for row in database.read_winners(tuned, SLUG).rows] == [64]
    assert [row.problem.m for row in database.read_winners(tuned, "interpreter").rows] == [32]
    assert database.read_winners(tuned, "nvidia-b200-sm100-148").rows == ()


REVISIONS = [f"{number:04}" for number in range(int(database.OLDEST_REVISION), int(database.REVISION) + 1)]


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_database_of_every_revision_serves(revision):
    assert REVISIONS[0] == "0001"
    path = FIXTURES / f"{revision}.db"
    assert [row.median_us for row in database.read_winners(path, SLUG).rows] == [40.5, 12.25]
    (device,) = database.read_devices(path)
    assert device == H200
    rates = (None, None) if revision == "0001" else (1980, 4800)
    assert (device.clock_mhz, device.memory_gb_per_s) == rates


def test_devices_are_listed(tuned, make_database, make_row):
    make_database(tuned, make_row(32), device=INTERPRETER)
    assert database.read_devices(tuned) == [INTERPRETER, H200]


def test_trials_are_not_scanned(tuned):
    with closing(sqlite3.connect(tuned)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {database._WINNERS}", (SLUG,)).fetchall()
    assert not [step for *_, step in plan if step.startswith("SCAN")]


def test_reading_a_finished_wal_database_leaves_no_file_behind(tuned):
    assert (tuned.read_bytes()[18], files(tuned.parent)) == (2, ["tuner.db"])
    before = tuned.read_bytes()
    database.read_winners(tuned, SLUG)
    assert (tuned.read_bytes(), files(tuned.parent)) == (before, ["tuner.db"])


@pytest.mark.parametrize("name", ["tuner.db", "link.db"])
def test_rows_still_in_the_log_of_a_living_writer_are_seen(tuned, name):
    path = tuned.with_name(name)
    if path != tuned:
        path.symlink_to(tuned)
    command = [sys.executable, "-c", INSERT_AND_LIVE_ON, str(tuned)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        assert {row.median_us for row in database.read_winners(path, SLUG).rows} == {1.5}
        writer.communicate("")


def test_rows_in_the_log_of_a_killed_writer_are_seen(tuned):
    command = [sys.executable, "-c", INSERT_AND_LIVE_ON, str(tuned)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.kill()
    assert files(tuned.parent) == ["tuner.db", "tuner.db-shm", "tuner.db-wal"]
    assert {row.median_us for row in database.read_winners(tuned, SLUG).rows} == {1.5}


def test_a_writer_in_a_transaction_does_not_block_a_reader(tuned):
    with closing(sqlite3.connect(tuned, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE winner SET median_us = 1.5")
        assert {row.median_us for row in database.read_winners(tuned, SLUG).rows} == {12.5}


def test_what_a_writer_rewrites_meanwhile_is_read_again_and_not_called_damaged(tuned, make_database, make_family):
    make_database(tuned, families=(make_family(16, 64),))
    command = [sys.executable, "-c", READ_AND_WAIT, str(tuned), SLUG]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, **pipes) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        with closing(sqlite3.connect(tuned, isolation_level=None)) as writer:
            writer.executescript("PRAGMA journal_mode = DELETE; PRAGMA page_size = 1024; VACUUM")
            writer.execute("PRAGMA journal_mode = WAL")
        assert reader.communicate("\n")[0] == "2 1\n"


def test_a_folder_is_no_database(tmp_path):
    with pytest.raises(TableError, match=rf"{tmp_path} is a folder: expected a database file, for instance .*tuner.db"):
        database.read_winners(tmp_path, H200.slug)


def test_a_wal_database_in_a_read_only_folder_is_read(locked_folder):
    path = locked_folder()
    assert "readonly" in read_as_nobody(path, "plain sqlite3 first").stderr  # so the folder is what it must be
    done = read_as_nobody(path)
    assert (done.stdout, done.stderr) == ("[12.5, 12.5]\n", "")
    assert files(path.parent) == ["tuner.db"]


def test_in_a_read_only_folder_a_log_with_its_index_is_read_too(tuned, locked_folder):
    with closing(sqlite3.connect(tuned)) as writer:
        with writer:
            writer.execute("UPDATE winner SET median_us = 1.5")
        for name in ("tuner.db-shm", "tuner.db-wal"):
            tuned.with_name(name).chmod(0o444)
        done = read_as_nobody(locked_folder())
    assert (done.stdout, done.stderr) == ("[1.5, 1.5]\n", "")


def test_in_a_read_only_folder_a_log_without_its_index_is_told_as_unseen(tuned, locked_folder):
    with closing(sqlite3.connect(tuned)) as writer:
        with writer:
            writer.execute("UPDATE winner SET median_us = 1.5")
        log = tuned.with_name("tuner.db-wal").read_bytes()
        assert log
    tuned.with_name("tuner.db-wal").write_bytes(log)  # closing moved it into the database: put a log back
    tuned.with_name("tuner.db-wal").chmod(0o444)
    done = read_as_nobody(locked_folder())
    assert done.returncode == 0, done.stderr
    assert "-wal file are not seen" in done.stderr
    assert files(tuned.parent) == ["tuner.db", "tuner.db-wal"]


def test_a_database_copied_for_shipping_is_read_on_a_read_only_folder(tuned, locked_folder):
    with closing(sqlite3.connect(tuned)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    assert read_as_nobody(locked_folder()).stdout == "[12.5, 12.5]\n"


def test_an_older_schema_names_the_command(tuned):
    with closing(sqlite3.connect(tuned)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
    with pytest.raises(TableError, match=r"schema 0000, older than \d+: tuner db upgrade --db .*tuner\.db"):
        database.read_winners(tuned, SLUG)


def test_a_newer_schema_asks_for_a_newer_triton_tuner(tuned):
    with closing(sqlite3.connect(tuned)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(TableError, match=r"schema 9999, newer than .*: upgrade triton-tuner"):
        database.read_winners(tuned, SLUG)


def test_somebody_elses_database_is_refused(tmp_path):
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(TableError, match="not a database of triton-tuner"):
        database.read_winners(path, SLUG)


@pytest.mark.parametrize("content", [b"no database at all, but text", b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_file_that_is_no_database_is_one_clear_error_and_stays_as_it_is(tmp_path, content):
    path = tmp_path / "odd.db"
    path.write_bytes(content)
    with pytest.raises(TableError, match=r"odd\.db"):
        database.read_winners(path, SLUG)
    assert path.read_bytes() == content
    assert files(tmp_path) == ["odd.db"]


def test_a_database_whose_disk_cannot_be_read_is_one_clear_error(tmp_path):
    path = tmp_path / "tuner.db"
    path.symlink_to("/proc/self/mem")  # a regular file, of which nobody can read the first page
    with pytest.raises(
        TableError, match=rf"^cannot read the database {path}: .*: look at its disk and permissions, or"
    ):
        database.read_winners(path, SLUG)


def test_a_truncated_database_is_one_clear_error(tuned):
    tuned.write_bytes(tuned.read_bytes()[: 4096 * 3])
    with pytest.raises(TableError, match=r"cannot read the database .*: damaged: restore a backup"):
        database.read_winners(tuned, SLUG)


BAD = {
    "parameters that are no JSON": "UPDATE config SET parameters = 'fast'",
    "parameters that are a list": "UPDATE config SET parameters = '[1]'",
    "an unknown layout": "UPDATE problem SET layout = 'qq' WHERE m = 16",
    "extras that are no JSON": "UPDATE problem SET extras = '{' WHERE m = 16",
    "a time below zero": "UPDATE winner SET median_us = -1 WHERE problem_id = 1",
    "ties that are no JSON": "UPDATE winner SET ties = 'x' WHERE problem_id = 1",
}


@pytest.mark.parametrize("statement", BAD.values(), ids=BAD.keys())
def test_a_bad_winner_is_left_out_and_the_others_stay(statement, tuned, make_database, make_row):
    make_database(tuned, make_row(128, config=Config("toy", BLOCK_SIZE_M=64, num_warps=8)))
    with closing(sqlite3.connect(tuned)) as connection, connection:
        connection.execute(statement + (" WHERE config_id = 1" if "config SET" in statement else ""))
    found = database.read_winners(tuned, SLUG)
    assert 128 in {row.problem.m for row in found.rows}
    assert 16 not in {row.problem.m for row in found.rows}
    assert "left out" in str(found.faults[0])


def test_a_path_with_odd_characters_is_read(tmp_path, make_database, make_row):
    path = make_database(tmp_path / "a ?#%20 é.db", make_row(16))
    assert len(database.read_winners(path, SLUG).rows) == 1


def test_winners_come_newest_first(tuned, make_database, make_row):
    newer = json.loads('{"BLOCK_SIZE_M": 64, "num_warps": 8}')
    with closing(sqlite3.connect(tuned)) as connection, connection:
        connection.execute("UPDATE environment SET triton = '3.6.0', hash = 'older'")
    make_database(tuned, make_row(16, config=Config("toy", **newer)))
    rows = [row for row in database.read_winners(tuned, SLUG).rows if row.problem.m == 16]
    assert [row.made.environment.triton for row in rows] == ["3.7.1", "3.6.0"]


def test_equal_values_of_a_key_are_one_problem_whose_newest_winner_serves_and_ships(tmp_path, make_database, make_row):
    def row(size: float, block: int):
        problem = Problem.keyed("mine", {"N": size}, dtype="float16")
        return replace(make_row(), problem=problem, config=Config("mine", BLOCK=block))

    path = make_database(tmp_path / "tuner.db", row(1, 16))
    for size, block in ((True, 32), (1.0, 64)):
        make_database(path, row(size, block))
    rows = database.read_winners(path, SLUG).rows
    assert [each.config["BLOCK"] for each in rows] == [64, 32, 16], "a database keeps what each was tuned as"
    (found,) = by_problem(rows).items()
    assert found[0] == Problem.keyed("mine", {"N": True}, dtype="float16")
    with Store.open(path, read_only=True) as store:
        (table,) = select(store.winners()).tables
    assert [each.config["BLOCK"] for each in table.rows] == [64]
