"""`tuner doctor` calls a database wrong where `tuner run` would refuse it, and only there."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tuner.store import schema

FIXTURES = Path(__file__).parents[1] / "store" / "fixtures"
AGREE = """
import os, sys
from tuner.cli.doctor_checks import check_database
from tuner.errors import TunerError
from tuner.hardware.device import KNOWN, Environment
from tuner.store import backup, schema, winners
from tuner.store.store import Store

# Nobody may not be able to import what is imported late.
import alembic.autogenerate, alembic.command, alembic.migration, alembic.script
schema._known()
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
path = sys.argv[1]
for diagnosis in check_database(path):
    print(diagnosis.status, diagnosis.found)
print("now run")
try:
    with Store.open(path) as store, store.sole_writer():
        store.begin_run(KNOWN["sm_90"], Environment("", "", "", "", ""), argv=[], host="")
        print("taken")
except TunerError as e:
    print("refused", e)
"""


def database(folder: Path, revision: str = schema.HEAD, journal: str = "DELETE") -> Path:
    path = Path(shutil.copy(FIXTURES / f"{revision}.db", folder / "tuner.db"))
    with closing(sqlite3.connect(path)) as plain:
        plain.execute(f"PRAGMA journal_mode = {journal}")
    return path


def empty(folder: Path) -> None:
    (folder / "tuner.db").touch()


def log_left(folder: Path) -> None:
    """As a kill leaves a database: rows that are in its log alone."""
    path = database(folder, journal="WAL")
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("UPDATE trial SET message = 'later'")
        plain.commit()
        files = {file: file.read_bytes() for file in folder.iterdir()}
    for file, content in files.items():
        file.write_bytes(content)


def foreign(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "tuner.db")) as plain:
        plain.execute("CREATE TABLE song (title)")


def locked_by_another_user(folder: Path) -> None:
    database(folder)
    (folder / "tuner.db.lock").touch()


def read_only(folder: Path) -> None:
    database(folder).chmod(0o444)


def read_only_with_a_log(folder: Path) -> None:
    database(folder, journal="WAL").chmod(0o444)


SITUATIONS: dict[str, tuple[Callable[[Path], object], int, bool]] = {
    "sound": (database, 0o777, True),
    "not there": (lambda folder: None, 0o777, True),
    "empty": (empty, 0o777, True),
    "a log left behind": (log_left, 0o777, True),
    "behind": (lambda folder: database(folder, "0001"), 0o777, False),
    "a text": (lambda folder: (folder / "tuner.db").write_text("no database\n" * 99), 0o777, False),
    "a folder": (lambda folder: (folder / "tuner.db").mkdir(), 0o777, False),
    "a pipe": (lambda folder: os.mkfifo(folder / "tuner.db"), 0o777, False),
    "another program's": (foreign, 0o777, False),
    "read-only": (read_only, 0o777, False),
    "read-only, with a log": (read_only_with_a_log, 0o777, False),
    "another user's lock": (locked_by_another_user, 0o777, False),
    "in a folder that cannot be written": (database, 0o555, False),
    "a log left behind in such a folder": (log_left, 0o555, False),
    "not there, in such a folder": (lambda folder: None, 0o555, False),
}


@pytest.mark.parametrize(("make", "mode", "usable"), SITUATIONS.values(), ids=SITUATIONS)
def test_doctor_and_run_agree(make, mode, usable):
    folder = Path(tempfile.mkdtemp(prefix="tuner-test-"))  # other users may not enter pytest's own
    try:
        make(folder)
        for file in folder.iterdir():
            if file.stat().st_mode & 0o200 and file.suffix != ".lock":
                file.chmod(0o777)
        if (lock := folder / "tuner.db.lock").exists():
            lock.chmod(0o444)
        folder.chmod(mode)
        done = subprocess.run(
            [sys.executable, "-c", AGREE, folder / "tuner.db"],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.stderr == ""
        said, _, run = done.stdout.partition("now run\n")
        assert run.startswith("taken" if usable else "refused"), done.stdout
        assert ("wrong " not in said) is usable, done.stdout
        assert run.count("\n") == 1
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)
