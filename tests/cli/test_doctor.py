"""`tuner doctor` names what is wrong and what to type, and never ends in a traceback."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import EntryPoint

import pytest

from tuner.cli import doctor_checks as machine
from tuner.cli.doctor_checks import Status, check_database, check_tables
from tuner.hardware.device import KNOWN
from tuner.lookup import sources, strict
from tuner.lookup.table import Table
from tuner.store import schema


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """The developer's own database and tables are not looked at."""
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "own.db"))
    monkeypatch.delenv("TUNER_TABLES", raising=False)


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "tuner.db"
    schema.upgrade(str(path))
    return path


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tuner", "doctor", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_healthy_machine_exits_0_and_names_everything(database):
    pytest.importorskip("triton", reason="Triton is not installed: no machine without it is healthy")
    found = doctor("--json", "--db", str(database))
    report = json.loads(found.stdout)
    assert (found.returncode, report["ok"], found.stderr) == (0, True, "")
    topics = {finding["topic"]: finding["found"] for finding in report["findings"]}
    assert {"gpu", "python", "torch", "triton", "compiler", "cuobjdump", "kernel", "database", "tables"} <= set(topics)
    assert topics["database"] == f"{database}, schema {schema.HEAD}"
    kernels = [finding["found"] for finding in report["findings"] if finding["topic"] == "kernel"]
    assert "matmul/pointer version" in " ".join(kernels)


def test_what_is_wrong_is_told_with_what_to_type_and_exits_1(tmp_path):
    """A package whose kernel raises and whose tables are gone, a table that is none, a file that is no database."""
    pytest.importorskip("triton", reason="Triton is not installed: more would be wrong than the test put there")
    info = tmp_path / "site" / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tuner.kernels]\nmine = broken:SPEC\n[tuner.tables]\nmine = gone.tables\n")
    (tmp_path / "site" / "broken.py").write_text("raise RuntimeError('not on this machine')\n")
    (tmp_path / "matmul--some-gpu.json").write_text("{}")
    (tmp_path / "notes.db").write_text("no database, but long enough to be looked at as one " * 4)
    found = doctor(
        *("--db", str(tmp_path / "notes.db")),
        PYTHONPATH=str(tmp_path / "site"),
        TUNER_TABLES=str(tmp_path / "matmul--some-gpu.json"),
    )
    assert (found.returncode, found.stderr) == (1, "")
    wrong = [line for line in found.stdout.splitlines() if line.startswith("wrong")]
    assert len(wrong) == 4
    for words in (
        "mine (broken:SPEC) did not load: RuntimeError: not on this machine",
        "notes.db: not a SQLite database",
        "matmul--some-gpu.json is not used",
        "gone.tables",
    ):
        assert any(words in line for line in wrong), words


def test_a_newer_database_is_refused_by_name(database):
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    (finding,) = check_database(str(database))
    assert finding.status is Status.WRONG
    assert finding.found.startswith(f"{database}: has schema 9999, ")
    assert "upgrade triton-tuner" in finding.found


def test_somebody_elses_database_is_refused_by_name(tmp_path):
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection, connection:
        connection.execute("CREATE TABLE recipe (name TEXT)")
    (finding,) = check_database(str(tmp_path / "other.db"))
    assert (finding.status, "no database of triton-tuner" in finding.found) == (Status.WRONG, True)


def test_a_missing_and_an_empty_database_are_fine(tmp_path):
    (missing,) = check_database(str(tmp_path / "deep" / "tuner.db"))
    assert (missing.status, "the first `tuner run` makes it" in missing.found) == (Status.OK, True)
    assert not (tmp_path / "deep").exists()
    (tmp_path / "empty.db").touch()
    (empty,) = check_database(str(tmp_path / "empty.db"))
    assert (empty.status, "the first `tuner run` fills it" in empty.found) == (Status.OK, True)


def test_a_database_that_cannot_be_made_or_reached_is_wrong(tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be made" in check_database(str(tmp_path / "file" / "tuner.db"))[0].found
    assert "is a folder" in check_database(str(tmp_path))[0].found
    (tmp_path / "loop").symlink_to("loop")
    assert "Too many levels of symbolic links" in check_database(str(tmp_path / "loop"))[0].found
    assert "neither SQLite nor PostgreSQL" in check_database("oracle://host/name")[0].found


def test_tables_in_order_are_listed_by_their_devices(tmp_path, monkeypatch):
    Table("matmul", KNOWN["sm_90"], "2026-01-31T12:00:00Z", ()).write(tmp_path)
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
    monkeypatch.setattr(sources, "entry_points", lambda group: [EntryPoint(sources.OWN, "tuner.tables.shipped", group)])
    assert [(finding.status, finding.found) for finding in check_tables()] == [
        (Status.OK, f"$TUNER_TABLES {tmp_path}: for nvidia-h200-sm90-132"),
        (Status.OK, "package tuner.tables.shipped: for nvidia-h100-80gb-hbm3-sm90-132, nvidia-h200-sm90-132"),
    ]


@pytest.mark.parametrize("named", ["the folder", "the table"])
def test_broken_kernels_beside_tables_and_an_unknown_strictness_are_wrong(tmp_path, monkeypatch, named):
    path = Table("matmul", KNOWN["sm_90"], "2026-01-31T12:00:00Z", ()).write(tmp_path)
    kernels = tmp_path / "matmul--nvidia-h200-sm90-132.kernels"
    kernels.mkdir()
    (kernels / "index.json").write_text("{")
    monkeypatch.setenv("TUNER_TABLES", str(path if named == "the table" else tmp_path))
    monkeypatch.setenv("TUNER_STRICT", "maybe")
    monkeypatch.setattr(strict, "_on", None)
    monkeypatch.setattr(sources, "entry_points", lambda group: [])
    listed, broken, unknown = check_tables()
    assert (listed.status, broken.status, unknown.status) == (Status.OK, Status.WRONG, Status.WRONG)
    assert broken.found.startswith(f"{kernels}: its index.json cannot be read: ")
    assert broken.advice == "export it again with --with-kernels"
    assert unknown.found == "$TUNER_STRICT is 'maybe': expected 1, to compile nothing while serving, or 0"


def test_a_triton_beyond_the_supported_ones_is_wrong():
    for version, status in (
        ("3.5.1", Status.WRONG),
        ("3.7.1", Status.OK),
        ("3.9.0", Status.OK),
        ("3.10.0", Status.WRONG),
    ):
        finding = machine.check_triton({"triton": {"version": version}})
        assert finding.status is status, version
        assert (status is Status.OK) or "pip install 'triton>=3.6,<3.10'" in finding.advice


def test_a_gpu_that_torch_cannot_use_is_wrong(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    finding = machine.check_gpus(["NVIDIA H200"], {"torch": {"devices": []}})[0]
    assert (finding.status, "pip install torch" in finding.advice) == (Status.WRONG, True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.check_gpus(["NVIDIA H200"], {"torch": {"devices": []}})[0].advice == "unset CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("torch", "status", "use"),
    [
        ({}, Status.NOTE, "Triton needs it, but for tuner.kernels and adopted libraries"),
        ({"cuda": "12.9"}, Status.NOTE, "Triton needs it, but for tuner.kernels and adopted libraries"),
        ({"hip": "6.4"}, Status.WRONG, "every launch needs it"),
    ],
)
def test_a_compiler_that_is_not_there_is_wrong_only_where_our_ops_need_one(torch, status, use, monkeypatch):
    devices = [{"name": "a GPU", "slug": "a-gpu"}] if torch else []
    found = {"version": "2.13.0", "cuda": None, "hip": None, "devices": devices} | torch
    probed = {"torch": found, "triton": {"version": "3.7.1"}, "kernels": []}
    monkeypatch.setattr(machine, "probe", lambda: probed)
    monkeypatch.setenv("PATH", "/nowhere")
    for place, found in (("", "neither gcc nor clang"), ("/nowhere/cc", "$CC is /nowhere/cc, which is not there")):
        monkeypatch.setenv("CC", place)
        (finding,) = (each for each in machine.check_machine() if each.topic == "compiler")
        assert (finding.status, finding.found) == (status, f"{found}: {use}")


def test_a_driver_that_hangs_is_given_up_on():
    assert "did not end" in machine.probe(timeout_s=0.05)["error"]


def test_a_process_that_dies_on_import_is_told(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("import os; os.abort()\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "ended with -6" in machine.probe()["error"]


def test_an_entry_of_the_path_that_is_no_text_is_passed_over_as_imports_do(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    assert "error" not in machine.probe()


def test_what_lies_in_the_current_folder_is_not_taken_for_installed(tmp_path, monkeypatch):
    """As for `tuner run` of a shell's `tuner`, whose path begins with the folder of that program."""
    pytest.importorskip("triton", reason="Triton is not installed: no machine without it is healthy")
    (tmp_path / "triton.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "mine-1.dist-info").mkdir()
    (tmp_path / "mine-1.dist-info" / "METADATA").write_text("Name: mine\nVersion: 1\n")
    (tmp_path / "mine-1.dist-info" / "entry_points.txt").write_text("[tuner.kernels]\nmine = mine:dbl\n")
    (tmp_path / "mine.py").write_text("raise RuntimeError('nor this')\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "begin.py").write_text("from tuner.__main__ import main\nmain()\n")
    command = [sys.executable, tmp_path / "bin" / "begin.py"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120}
    found = subprocess.run([*command, "doctor", "--json"], check=False, **options)
    findings = json.loads(found.stdout)["findings"]
    assert [each for each in findings if each["status"] == "wrong" or "mine" in each["found"]] == []
    refused = subprocess.run([*command, "run", "--kernel", "mine", "--problem", "N=16"], check=False, **options)
    assert (refused.returncode, "no installed kernel is called" in refused.stderr) == (2, True), refused.stderr
