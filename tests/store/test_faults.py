"""What can go wrong with a file: each is one line that names it, and the file stays as it was."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from tuner.errors import StoreError
from tuner.store import health, schema
from tuner.store.backup import backup_file
from tuner.store.engine import faults, locate
from tuner.store.extract import extract
from tuner.store.records import Verdict
from tuner.store.store import RunStatus, Store

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN " + sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""
RECORD_FOR_EVER = """
import itertools, resource, sys
from tuner.kernel.config import Config
from tuner.hardware.device import KNOWN, Environment
from tuner.errors import StoreError
from tuner.problem import Problem
from tuner.store.records import KernelVersion, Outcome, State, Trial
from tuner.store.store import Store

path, limit = sys.argv[1], int(sys.argv[2])
kernel, problem = KernelVersion("matmul", "pointer", 1, "a0"), Problem(64, 64, 64)
with Store.open(path) as store:
    run = store.begin_run(KNOWN["sm_90"], Environment("3.7.1", "2.13.0", "cuda", "", "3.11"), argv=[], host="h")
    if limit:  # SIGXFSZ is ignored by Python: writes beyond the limit fail
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    for batch in itertools.count(1):
        configs = [Config("pointer", batch=batch, i=i) for i in range(10)]
        try:
            store.record(run, [Trial(problem, c, kernel, Outcome(State.TIMEOUT, "x" * 200)) for c in configs])
        except StoreError as e:
            print(e, flush=True)
            break
        print(batch * 10, flush=True)
"""
AS_NOBODY = """
import os, sys
from tuner.errors import StoreError
from tuner.store.store import Store

Store.open(sys.argv[2]).winners()  # nobody may not be able to import what is imported late
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for read_only in (True, False):
    try:
        with Store.open(sys.argv[1], read_only=read_only) as store:
            print(store.count_trials())
    except StoreError as e:
        print(e)
"""


@pytest.fixture
def filled(store, database, run, make_trial) -> Path:
    store.record(run, [make_trial(block) for block in range(1, 400)])
    store.close()
    return database


@pytest.fixture
def open_folder():
    """A folder that other users may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="tuner-test-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def one_line(error: pytest.ExceptionInfo[StoreError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def integrity(path: Path) -> list[tuple]:
    with closing(sqlite3.connect(path)) as plain:
        return plain.execute("PRAGMA integrity_check").fetchall()


@pytest.mark.parametrize("use", [Store.open, schema.upgrade, health.check, health.current])
@pytest.mark.parametrize("content", [b"PK\x03\x04 not a database at all" * 100, b"SQLite format 3\0" + b"\x07" * 5000])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path, content, use):
    path = tmp_path / "tuner.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"tuner\.db: not a SQLite database") as raised:
        use(str(path))
    one_line(raised)
    assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["tuner.db"]


def test_a_damaged_schema_is_refused_and_left_alone(filled):
    content = bytearray(filled.read_bytes())
    content[100:2000] = b"\xff" * 1900  # the first page, after the header
    filled.write_bytes(content)
    with pytest.raises(StoreError, match="damaged: restore a backup") as raised:
        Store.open(str(filled))
    one_line(raised)
    assert filled.read_bytes() == content


def test_damaged_rows_are_one_line_when_read_or_checked(filled):
    content = bytearray(filled.read_bytes())
    content[-30_000:] = b"\xff" * 30_000
    filled.write_bytes(content)
    with Store.open(str(filled)) as store, pytest.raises(StoreError, match="damaged: restore a backup") as raised:
        store.trials()
    one_line(raised)
    with pytest.raises(StoreError, match="damaged: restore a backup"):
        health.check(str(filled))
    copy = filled.with_name("copy.db")
    with pytest.raises(StoreError, match="damaged, so it was not copied: restore a backup") as raised:
        backup_file(filled, revision="1", destination=copy)
    one_line(raised)
    assert not copy.exists()


def test_a_folder_in_place_of_the_file_is_refused(tmp_path):
    with pytest.raises(StoreError, match=rf"is a folder: expected a database file, for instance {tmp_path}/tuner\.db"):
        Store.open(str(tmp_path))


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="name another with --db") as raised:
        Store.open(str(tmp_path / "file" / "tuner.db"))
    one_line(raised)


def replace(path: Path) -> None:
    schema.upgrade(f"{path}.other")
    Path(f"{path}.other").replace(path)
    for ending in ("-wal", "-shm"):
        path.with_name(f"{path.name}{ending}").unlink()


GONE = {
    "deleted": lambda path: path.unlink(),
    "deleted with its log": lambda path: [file.unlink() for file in path.parent.iterdir()],
    "replaced": replace,
    "its folder removed": lambda path: shutil.rmtree(path.parent),
    "its folder moved": lambda path: path.parent.rename(path.parent.with_name("elsewhere")),
}


@pytest.mark.parametrize("harm", GONE.values(), ids=GONE)
def test_a_file_that_goes_away_while_it_is_written_is_one_line(store, database, run, make_trial, problem, kernel, harm):
    store.record(run, [make_trial(16)])
    harm(database)
    verdict = Verdict(make_trial(16).config, 1.0, None, None, ())
    for write in (
        lambda: store.record(run, [make_trial(32)]),
        lambda: store.decide(run, problem, kernel, verdict),
        lambda: store.end_run(run, RunStatus.DONE),
    ):
        with pytest.raises(
            StoreError, match="was deleted or replaced by another file while this wrote to it"
        ) as raised:
            write()
        one_line(raised)
    if database.exists():
        with Store.open(str(database), read_only=True) as other:
            assert other.count_trials() == 0


def test_a_copy_in_the_place_of_a_deleted_file_holds_its_own_rows_once_the_advice_is_followed(
    store, database, run, device, environment, make_trial
):
    fleet = database.with_name("fleet.db")
    with Store.open(str(fleet)) as other:
        theirs = other.begin_run(device, environment, argv=["tuner", "run"], host="node2")
        other.record(theirs, [make_trial(block) for block in (16, 32, 64)])
    store.record(run, [make_trial(16)])
    database.unlink()
    with pytest.raises(StoreError, match="move it back, or type `rm ") as raised:
        store.record(run, [make_trial(32)])
    store.close()
    assert database.with_name(f"{database.name}-wal").stat().st_size > 0
    subprocess.run(str(raised.value).split("`")[1], shell=True, check=True)
    shutil.copy(fleet, database)
    with Store.open(str(database), read_only=True) as other:
        assert other.count_trials() == 3


def test_the_log_of_a_database_that_took_the_place_is_not_called_one_to_remove(
    store, database, run, device, environment, make_trial
):
    store.record(run, [make_trial(16)])
    for file in database.parent.glob(f"{database.name}*"):
        file.unlink()
    with Store.open(str(database)) as other:
        other.begin_run(device, environment, argv=["tuner", "run"], host="node2")
        assert database.with_name(f"{database.name}-wal").exists()
        with pytest.raises(StoreError, match="there: put a copy back or name another with --db"):
            store.record(run, [make_trial(32)])
        assert other.count_trials() == 0


def test_the_log_of_a_file_that_was_moved_into_the_place_is_not_called_one_to_remove(
    store, database, run, device, environment, make_trial
):
    """SQLite goes on in the log that it finds there, so it is the newcomer's too."""
    store.record(run, [make_trial(16)])
    fleet = database.with_name("fleet.db")
    with Store.open(str(fleet)):
        pass
    fleet.replace(database)
    with Store.open(str(database)) as other:
        other.begin_run(device, environment, argv=["tuner", "run"], host="node2")
        with pytest.raises(StoreError) as raised:
            store.record(run, [make_trial(32)])
    assert "rm " not in str(raised.value)


def test_a_missing_file_is_not_made_by_a_reader(tmp_path):
    for use in (lambda path: Store.open(path, read_only=True), health.check, health.current):
        with pytest.raises(StoreError, match=r"no database at .*tuner\.db: `tuner run` makes one"):
            use(str(tmp_path / "folder" / "tuner.db"))
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("sqlite://", "expected a path, or sqlite:/// and a path"),
        ("sqlite+pysqlite:///tuner.db", "expected a path, or sqlite:/// and a path"),
        ("postgresql://u:secret@host:port/x", "the port after the host is no number from 1 to 65535"),
        ("postgresql://u:secret@host:65536/x", "the port after the host is no number from 1 to 65535"),
        (
            "mysql://u:secret@host/x",
            "mysql://...: neither SQLite nor PostgreSQL: expected a path, or postgresql://user@",
        ),
        ("nosuchbase://u:secret@host/x", "expected a path, or postgresql://user@host/name"),
        ("postgresql:/u:secret@host/x", "postgresql:/...: expected a path, or postgresql://user@host/name"),
        ("postgresql//u:secret@host/x", "a path that begins like that is ./postgresql//..."),
        ("postgres:u:secret@host/x", "postgres:...: expected a path, or postgresql://user@host/name"),
        ("host=h password=secret dbname=x", "host=...: expected a path, or postgresql://user@host/name"),
        ("postgresql://u:secret@host", "postgresql://...: names no database: expected postgresql://user@host/name"),
        ("postgres://u:secret@host/", "names no database: expected postgresql://user@host/name"),
    ],
)
def test_a_url_that_cannot_be_used_is_one_line_without_its_password(location, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=re.escape(message)) as raised:
        Store.open(location)
    assert "secret" not in one_line(raised)
    assert list(tmp_path.iterdir()) == []


def test_a_path_may_begin_as_a_server_s_url_does_and_libpq_s_shorter_scheme_is_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Store.open("./postgresql/x.db").close()
    assert (tmp_path / "postgresql" / "x.db").exists()
    assert locate("postgres://u@host/x").label == locate("postgresql://u@host/x").label
    assert locate("postgresql:///?service=fleet").path is None


def test_a_sqlite_url_names_a_file(tmp_path):
    Store.open(f"sqlite:///{tmp_path}/a b%c?.db").close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a b%c?.db"]


def test_a_path_that_is_no_text_is_a_path(tmp_path):
    Store.open(f"{tmp_path}/\udcff.db").close()  # as Python has the byte 0xff of a command line
    assert [os.fsencode(entry.name) for entry in tmp_path.iterdir()] == [b"\xff.db"]


def test_a_locked_database_is_one_line_after_the_timeout(filled, python, run, make_trial):
    holder = python(HOLD, filled, "IMMEDIATE")
    assert holder.stdout.readline() == "held\n"
    start = time.monotonic()
    with Store.open(str(filled), busy_timeout_s=0.2) as store:
        assert store.count_trials() == 399, "a writer does not keep readers out"
        with pytest.raises(StoreError, match="another process holds its lock") as raised:
            store.record(run, [make_trial(1000)])
        one_line(raised)
        assert time.monotonic() - start < 5
        holder.communicate()
        store.record(run, [make_trial(1000)])
        assert store.count_trials() == 400


def test_a_new_database_that_another_process_locks_is_one_line(tmp_path, python):
    holder = python(HOLD, tmp_path / "tuner.db", "EXCLUSIVE")
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(StoreError, match="another process holds its lock"):
        Store.open(str(tmp_path / "tuner.db"), busy_timeout_s=0.2)


def test_a_full_disk_loses_nothing_that_was_recorded_and_room_lets_it_go_on(
    small_disk, device, environment, make_trial
):
    path = small_disk / "tuner.db"
    with Store.open(str(path)) as store:
        run = store.begin_run(device, environment, argv=[], host="node1")
        recorded = 0
        message = ""
        while not message:
            try:
                store.record(run, [make_trial(recorded + i) for i in range(50)])
                recorded += 50
            except StoreError as e:
                message = str(e)
        assert message.startswith(f"{path}: the disk is full: nothing of this was written")
        assert 0 < recorded == store.count_trials()
        subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
        store.record(run, [make_trial(recorded + i) for i in range(50)])
        assert store.count_trials() == recorded + 50
    assert integrity(path) == [("ok",)]


def test_a_copy_for_which_the_disk_has_no_room_leaves_no_file(small_disk, store, run, make_trial):
    store.record(run, [make_trial(block, message="x" * 5000) for block in range(1, 1001)])  # more than SQLite caches
    with pytest.raises(StoreError, match=r"no backup of .* could be written to .* \(database or disk is full\)"):
        backup_file(Path(store.location), revision=None, destination=small_disk)
    with pytest.raises(StoreError, match="database or disk is full"):
        extract(store.location, small_disk, ["any"])
    assert list(small_disk.iterdir()) == []


def test_a_disk_too_full_for_the_schema_leaves_no_half_of_it(small_disk, device, environment):
    (small_disk / "other").write_bytes(b"x" * 460_000)
    path = small_disk / "tuner.db"
    with pytest.raises(StoreError, match=r"the disk is full: .* make room, then type the command again"):
        Store.open(str(path))
    (small_disk / "other").unlink()
    Store.open(str(path)).close()
    assert integrity(path) == [("ok",)]


def test_a_file_that_may_not_grow_loses_nothing_that_was_recorded(tmp_path, python):
    path = tmp_path / "tuner.db"
    writer = python(RECORD_FOR_EVER, path, 300_000)
    *recorded, message = writer.communicate(timeout=60)[0].splitlines()
    assert writer.returncode == 0
    assert f"{path}: the disk could not be read or written: nothing of this was written" in message
    with Store.open(str(path), read_only=True) as store:
        assert store.count_trials() == int(recorded[-1])
    assert integrity(path) == [("ok",)]


def test_a_writer_killed_at_any_moment_loses_nothing_that_was_recorded(tmp_path, python):
    path = tmp_path / "tuner.db"
    for batches in (1, 4, 9):
        writer = python(RECORD_FOR_EVER, path, 0)
        for _ in range(batches):
            recorded = int(writer.stdout.readline())
        writer.kill()
        # What `readline` read ahead is in its buffer, where `communicate` does not look.
        rest = writer.stdout.read()
        writer.communicate()
        recorded = max([recorded, *(int(line) for line in rest.splitlines() if line.endswith("0"))])
        assert integrity(path) == [("ok",)]
        with Store.open(str(path)) as store:
            assert recorded <= store.runs()[0].trials <= recorded + 10
            assert store.runs()[0].trials % 10 == 0


def test_a_file_that_may_not_be_read_is_one_line(filled, open_folder, python):
    path = open_folder / "tuner.db"
    shutil.copy(filled, path)
    path.chmod(0)
    out, err = python(AS_NOBODY, path, filled).communicate(timeout=60)
    assert err == ""
    expected = f"{path}: could not be opened: check its permissions and its folder's"
    assert [line.startswith(expected) for line in out.splitlines()] == [True, True]


def test_a_read_only_file_in_a_read_only_folder_can_be_read(filled, open_folder, python):
    path = open_folder / "tuner.db"
    shutil.copy(filled, path)
    path.chmod(0o444)
    open_folder.chmod(0o555)
    out, err = python(AS_NOBODY, path, filled).communicate(timeout=60)
    assert err == ""
    assert out.splitlines()[0] == "399"
    assert [entry.name for entry in open_folder.iterdir()] == ["tuner.db"]


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ('FATAL:  permission denied for database "x"', "its owner can GRANT it"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "u", database "x", no encryption', "let this user in"),
    ],
)
def test_what_a_server_says_of_a_user_it_keeps_out_is_not_taken_for_a_missing_database(said, meaning):
    with pytest.raises(StoreError, match=meaning) as raised, faults(locate("postgresql://u@host/x")):
        raise OperationalError("", None, Exception(said))
    assert "createdb" not in one_line(raised)


def test_a_server_that_is_not_there_is_one_line():
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    with pytest.raises(StoreError, match=re.escape("postgresql://u:***@127.0.0.1:1/x: ")) as raised:
        Store.open("postgresql://u:secret@127.0.0.1:1/x")
    one_line(raised)
