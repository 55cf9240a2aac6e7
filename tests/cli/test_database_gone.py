"""A database that somebody deletes while a sweep writes to it: told at once, and nothing runs on."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("triton")

SUITE = "m,n,k,dtype,layout\n" + "".join(f"16,16,{k},float16,nn\n" for k in range(16, 3200, 16))


def test_a_run_whose_database_goes_away_ends_in_one_line_and_leaves_no_process(tmp_path):
    database = tmp_path / "folder" / "tuner.db"
    (tmp_path / "many.csv").write_text(SUITE)
    command = [sys.executable, "-m", "tuner", "run", "--device", "interpreter", "--suite", "many.csv"]
    options = {"cwd": tmp_path, "env": {**os.environ, "TRITON_INTERPRET": "0"}, "start_new_session": True}
    run = subprocess.Popen(
        [*command, "--db", str(database)], **options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while not trials(database):
            assert run.poll() is None
            time.sleep(0.05)
        shutil.rmtree(database.parent)
        out, err = run.communicate(timeout=100)
    finally:
        run.kill()
        run.communicate()
    assert (run.returncode, out) == (1, "")
    told = [line for line in err.splitlines() if line.startswith("tuner: ")]
    assert told == [err.splitlines()[-1]]
    assert f"{database} was deleted or replaced by another file" in told[0]
    assert "Traceback" not in err
    assert not database.parent.exists()
    deadline = time.monotonic() + 30
    while left := list(alive(run.pid)):  # they end when the pipe to their parent does, which takes a moment
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def alive(session: int) -> Iterator[str]:
    """The processes of a session, but for those that have ended and that nobody waits for."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, found, *_ = stat.read_text().rpartition(")")[2].split()
            if int(found) == session and state != "Z":
                yield stat.parent.name


def trials(path: Path) -> int:
    if not path.exists():
        return 0
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as plain:
        try:
            return plain.execute("SELECT count(*) FROM trial").fetchone()[0]
        except sqlite3.OperationalError:  # the schema is not there yet
            return 0
