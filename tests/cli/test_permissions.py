"""What a user may not look at, read or write is one line that says so, of every command that is given it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tuner.store import schema

FIXTURE = Path(__file__).parents[1] / "store" / "fixtures" / f"{schema.HEAD}.db"
AS_NOBODY = """
import json, os, sys
import sqlalchemy.dialects.sqlite
import tuner.cli, tuner.cli.db, tuner.cli.import_, tuner.cli.merge, tuner.cli.report
import tuner.lookup.database, tuner.report.document, tuner.report.page, tuner.report.regressions, tuner.report.vega
import tuner.store.merge, tuner.store.store, tuner.tables.importing.reader, tuner.tables.importing.tables

tuner.report.vega.require = lambda what: None  # it would draw nothing here
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for line in json.loads(sys.argv[1]):
    try:
        tuner.cli.main(line.split())
    except SystemExit as e:
        print("exit code", e.code, file=sys.stderr, flush=True)
"""
SAID = {
    "report --db good.db --out shut/r.html": "cannot open the report shut/r.html: Permission denied",
    "report --db good.db --out shut/in/r.html": "cannot open the report shut/in/r.html: Permission denied",
    "import shut/t.json --out out": "cannot open the table shut/t.json: Permission denied",
    "import shut --out out": "cannot list shut: Permission denied",
    "import folder --out out": "cannot list folder/shut: Permission denied",
    "import unreadable.json --out out": "cannot read unreadable.json: Permission denied",
    "import unreadable.zip --out out": "cannot read unreadable.zip: Permission denied",
    "merge shut/x.db good.db": "shut/x.db: Permission denied: name another as DEST",
    "merge out.db shut/x.db": "shut/x.db: Permission denied: name another as SRC",
    "merge out.db unreadable.json": "unreadable.json: could not be opened: check its permissions and its folder's, ",
    "db backup shut/copy.db --db good.db": "cannot open the backup shut/copy.db: Permission denied",
}


@pytest.fixture
def open_folder():
    """A folder that other users may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="tuner-test-"))
    folder.chmod(0o777)
    yield folder
    for shut in folder.rglob("shut"):
        shut.chmod(0o755)
    shutil.rmtree(folder)


def test_what_a_user_may_not_use_is_one_line_that_names_it(open_folder):
    shutil.copy(FIXTURE, open_folder / "good.db").chmod(0o666)
    for name in ("unreadable.json", "unreadable.zip"):
        (open_folder / name).write_text("{}")
        (open_folder / name).chmod(0)
    for folder in (open_folder, open_folder / "folder"):
        (folder / "shut").mkdir(parents=True)
        (folder / "shut").chmod(0)
    before = sorted(open_folder.rglob("*"))
    command = [sys.executable, "-W", "ignore", "-c", AS_NOBODY, json.dumps([*SAID])]
    done = subprocess.run(command, cwd=open_folder, capture_output=True, text=True, check=False, timeout=100)
    lines = iter(done.stderr.splitlines())
    for asked, said in SAID.items():
        assert next(lines).startswith(f"tuner: {said}"), (asked, done.stderr)
        assert next(lines) == "exit code 1", (asked, done.stderr)
    assert list(lines) == []
    assert done.stdout == ""
    assert sorted(open_folder.rglob("*")) == before
