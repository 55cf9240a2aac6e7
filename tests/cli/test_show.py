"""`tuner show`, over the database kept for the newest revision."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tuner.cli import show
from tuner.store import schema
from tuner.store.models import trial
from tuner.store.records import Outcome, Resources
from tuner.store.store import Store

FIXTURE = Path(__file__).parents[1] / "store" / "fixtures" / f"{schema.HEAD}.db"
H200 = "nvidia-h200-sm90-132"


@pytest.fixture
def database(tmp_path) -> Path:
    return Path(shutil.copy(FIXTURE, tmp_path / "tuner.db"))


@pytest.fixture
def tuner(tuner, database):
    """Run `tuner show` here: (exit code, stdout, stderr)."""
    return lambda *arguments, db=database: tuner("show", *arguments, "--db", db)


@pytest.fixture
def document(tuner):
    def document(*arguments: str) -> list[dict]:
        code, out, err = tuner(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return document


def test_winners_show_the_range_of_ms_that_they_serve(tuner, document):
    served = [each for row in document("winners") for each in row["ranges"]]
    assert served == [{"range": [9, 16, 16, "measured"], "batches": None}]
    code, out, _ = tuner("winners")
    assert code == 0
    assert " 9-16 " in out


def test_winners_are_a_table_of_whole_lines(tuner):
    code, out, err = tuner("winners")
    assert (code, err) == (0, "")
    header, decode, tf32 = out.splitlines()
    assert header.split()[:3] == ["device", "problem", "ranges"]
    assert decode.split("  ")[0] == H200
    assert "matmul 16x4096x4096 bfloat16 nt" in decode
    assert decode.split()[-5:] == ["12.25", "43.83", "1.224x", "2", "3.7.1"]
    assert tf32.split()[-6:] == ["40.50", "53.02", "1.284x", "1.025x", "1", "3.7.1"]


def test_winners_as_json_hold_their_evidence(document):
    decode, tf32 = document("winners")
    assert decode["device"]["slug"] == tf32["device"]["slug"] == H200
    assert decode["problem"]["layout"] == "nt"
    assert decode["kernel"] == "pointer"
    assert decode["config"]["BLOCK_SIZE_M"] == 32
    assert (decode["median_us"], decode["vs_vendor"], decode["ties"]) == (12.25, None, 2)
    assert tf32["vs_default"] == pytest.approx(52 / 40.5)
    assert tf32["environment"]["driver"] == "580.65.06"
    assert [tied.keys() for tied in decode["tied"]] == [{"kernel", "config"}] * 2


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["winners", "--shape", "16x4096x4096"], 1),
        (["winners", "--problem", "1x1x1"], 0),
        (["winners", "--problem", "M=16,dtype=bf16,layout=nt"], 1),
        (["winners", "--problem", "layout=nn,epilogue=bias+gelu,precision=tf32,aligned=true"], 1),
        (["winners", "--problem", "m=16,out_dtype=bf16"], 1),
        (["winners", "--problem", "M=16,DTYPE=bf16,LAYOUT=nt"], 1),
        (["winners", "--problem", "m=16,layout=nn"], 0),
        (["winners", "--problem", "aligned=false"], 0),
        (["trials", "--problem", "layout=nn,epilogue=bias+gelu,out_dtype=fp32,aligned=true"], 2),
        (["trials", "--problem", "LAYOUT=nn,DTYPE=fp32,EPILOGUE=bias+gelu"], 2),
        (["trials", "--problem", "m=16,layout=nn"], 0),
        (["problems", "--problem", "layout=nt"], 1),
        (["problems", "--problem", "layout=5,aligned=5"], 0),
        (["winners", "--shape", "1024x1024x1024", "--problem", "dtype=bf16"], 0),
        (["problems", "--shape", "16x4096x4096", "--problem", "dtype=bf16", "--problem", "layout=nt"], 1),
        (["winners", "--kernel", "split_k"], 0),
        (["winners", "--device", H200, "--limit", "1"], 1),
        (["trials"], 12),
        (["trials", "--state", "TIMEOUT"], 1),
        (["trials", "--state", "complete"], 5),
        (["trials", "--shape", "1024x1024x1024"], 2),
        (["trials", "--device", H200, "--kernel", "pointer", "--limit", "3"], 3),
        (["trials", "--kernel", "split_k"], 0),
        (["runs"], 2),
        (["runs", "--limit", "1", "--device", H200], 1),
        (["devices"], 1),
        (["problems"], 2),
        (["problems", "--shape", "1024x1024x1024", "--device", H200], 1),
        (["problems", "--limit", "1"], 1),
        (["problems", "--shape", "1x1x1"], 0),
    ],
)
def test_filters_narrow_what_is_listed(document, tuner, arguments, count):
    assert len(document(*arguments)) == count
    _, out, err = tuner(*arguments)
    assert max(0, len(out.splitlines()) - 1) == count
    assert count or err.startswith(("none match: leave a filter out\n", "no winner is of", "no trial is of"))


def test_a_kernel_that_nothing_is_of_is_named(tuner):
    assert tuner("winners", "--kernel", "nope")[2].startswith("no winner is of kernel 'nope': they are of pointer")
    assert tuner("trials", "--kernel", "nope")[2].startswith("no trial is of kernel 'nope': leave --kernel out")


@pytest.mark.parametrize("listed", ["winners", "trials", "problems"])
def test_a_name_that_no_problem_has_is_told_with_those_that_they_have(tuner, listed):
    code, out, err = tuner(listed, "--problem", "foo=64")
    assert (code, out) == (0, "")
    assert err.startswith("no problem here has 'foo': they have m, n, k, a_dtype, ")
    assert tuner(listed, "--problem", "M=64,Layout=nt")[2] == "none match: leave a filter out\n"


def test_runs_that_a_limit_hides_are_counted(tuner):
    _, out, err = tuner("runs", "--limit", "1")
    assert (len(out.splitlines()), err) == (2, "the newest 1 of 2: --limit 2 shows all\n")
    assert tuner("runs", "--limit", "2")[2] == ""


def test_trials_show_states_and_reasons(document):
    newest, *_, oldest = document("trials")
    assert (newest["problem"]["m"], newest["state"], newest["median_us"]) == (1024, "COMPLETE", 44.0)
    assert (oldest["registers"], oldest["gpu_uuid"]) == (96, "GPU-01234567-89ab-cdef-0123-456789abcdef")
    timeout = document("trials", "--state", "TIMEOUT")[0]
    assert (timeout["message"], timeout["median_us"]) == ("how TIMEOUT reads", None)


def test_every_column_of_a_trial_is_listed_without_naming_it(document):
    """A new figure of a trial is a field of Outcome, a column and a migration; the listing follows by itself."""
    fields = {field.name for kind in (Outcome, Resources) for field in dataclasses.fields(kind)} - {"resources"}
    assert fields <= set(document("trials")[0])
    assert fields <= {column.name for column in trial.columns}


def test_a_table_of_trials_says_what_it_leaves_out(tuner, monkeypatch):
    monkeypatch.setattr(show, "NEWEST", 5)
    _, out, err = tuner("trials")
    assert len(out.splitlines()) == 6
    assert err == "the newest 5 of 12: --limit 12 shows all\n"


def test_runs_devices_and_problems_tell_what_is_known(document):
    second, first = document("runs")
    assert (first["status"], first["trials"], first["argv"][:2]) == ("INTERRUPTED", 9, ["tuner", "run"])
    assert (second["status"], second["host"]) == ("DONE", "node1")
    assert second["started_at"] <= second["heartbeat_at"] <= second["ended_at"]
    assert second["node"] == "a machine, and its boot"
    (device,) = document("devices")
    assert (device["slug"], device["trials"], device["winners"]) == (H200, 12, 2)
    assert device["aliases"] == ["NVIDIA H200 (another driver's word)"]
    decode, tf32 = document("problems")
    assert (decode["problem"]["m"], decode["trials"], decode["complete"], decode["winners"]) == (16, 10, 3, 1)
    assert (tf32["trials"], tf32["complete"]) == (2, 2)


def test_an_error_that_is_not_finite_is_null_in_json(document, database):
    with closing(sqlite3.connect(database)) as plain, plain:
        plain.execute("UPDATE trial SET error = 9e999 WHERE state = 'WRONG_RESULT'")
    assert document("trials", "--state", "WRONG_RESULT")[0]["error"] is None


@pytest.mark.parametrize("name", ["h200", "NVIDIA H200", H200])
def test_a_device_is_named_by_slug_name_or_a_word_of_it(tuner, name):
    assert tuner("winners", "--device", name) == tuner("winners", "--device", H200)


def test_an_unknown_device_is_a_slip_that_names_the_known_ones(tuner, database):
    code, out, err = tuner("winners", "--device", "h100")
    assert (code, out) == (2, "")
    assert err == f"tuner: no device 'h100' in {database}: known are {H200}\n"


def test_a_shape_that_is_none_is_wrong_usage(tuner):
    code, _, err = tuner("trials", "--shape", "16x16")
    assert code == 2
    assert "expected MxNxK" in err


@pytest.mark.parametrize("limit", ["0", "9" * 20, "1e3", "inf"])
def test_a_limit_that_is_none_is_one_line_of_wrong_usage(tuner, limit):
    code, _, err = tuner("runs", "--limit", limit)
    assert (code, err.count("\n")) == (2, 1)


def lacks(path, noun):
    return f"{path} holds no {noun.removesuffix('s')}: `tuner run --db {path}` fills it\n"


def test_an_empty_database_lists_nothing(tuner, tmp_path):
    Store.open(str(tmp_path / "fresh.db")).close()
    for noun in ("winners", "trials", "runs", "devices", "problems"):
        code, out, err = tuner(noun, db=tmp_path / "fresh.db")
        assert (code, out) == (0, "")
        assert err == lacks(tmp_path / "fresh.db", noun)
        assert tuner(noun, "--json", db=tmp_path / "fresh.db")[:2] == (0, "[]\n")


@pytest.mark.parametrize("noun", ["winners", "trials", "problems"])
def test_a_filter_on_an_empty_database_still_says_what_fills_it(tuner, tmp_path, noun):
    Store.open(str(tmp_path / "fresh.db")).close()
    assert tuner(noun, "--shape", "1x1x1", db=tmp_path / "fresh.db")[2] == lacks(tmp_path / "fresh.db", noun)


def test_listing_changes_nothing(tuner, database):
    before = database.read_bytes()
    for noun in ("winners", "trials", "runs", "devices", "problems"):
        tuner(noun)
    assert database.read_bytes() == before
    assert [entry.name for entry in database.parent.iterdir()] == ["tuner.db"]


def test_help_does_not_load_the_database():
    code = "import sys; from tuner.cli import cli\n"
    code += "for command in (['show', 'trials'], ['db', 'check']):\n"
    code += "    cli.main([*command, '--help'], standalone_mode=False)\n"
    code += "print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert not {"sqlalchemy", "alembic", "rich", "torch", "triton"} & set(done.stdout.splitlines()[-1].split())


def test_of_two_shapes_or_two_values_of_one_name_none_is_dropped(database):
    for noun in ("winners", "trials", "problems"):
        for filters, said in (
            (["--shape", "1x1x1", "--shape", "16x4096x4096"], "1x1x1 and 16x4096x4096: no problem has both"),
            (["--problem", "M=1", "--problem", "M=16"], "'M=1,M=16': M is there twice"),
        ):
            command = [sys.executable, "-m", "tuner", "show", noun, *filters, "--db", str(database)]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stdout, said in done.stderr) == (2, "", True), done.stderr
