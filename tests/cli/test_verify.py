"""`tuner verify`: one test a finding, from real files and databases, and what it exits with."""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import tuner
from tuner import progress
from tuner.hardware.arch import ARCHES
from tuner.hardware.device import INTERPRETER, KNOWN, Environment, describe
from tuner.kernel.config import Config
from tuner.lookup import sources
from tuner.lookup.row import Row
from tuner.lookup.table import Table
from tuner.problem import Problem
from tuner.sweep import finals
from tuner.tables.verify import lint

H200 = KNOWN["sm_90"]

pytestmark = pytest.mark.usefixtures("toy", "no_tables")


@pytest.fixture
def won(make_row):
    """A row that nothing can be said against."""

    def won(m: int = 64, **parts: Any) -> Row:
        figures = {name: parts.pop(name) for name in ("vs_default", "vs_vendor", "ties") if name in parts}
        return dataclasses.replace(make_row(m, **parts), **{"vs_vendor": 1.05, **figures})

    return won


@pytest.fixture
def found(run, make_table, tmp_path):
    """Findings of one table, as (level, check) to the finding; it checks the exit code on the way."""

    def found(*rows: Row, device=H200, edit=None) -> dict[tuple[str, str], dict[str, Any]]:
        path = make_table(*rows, device=device).write(tmp_path)
        if edit is not None:
            path.write_text(edit(path.read_text()))
        code, out, err = run("verify", path, "--json")
        document = json.loads(out)
        findings = document["places"][0]["findings"]
        assert err == ""
        assert code == (1 if any(finding["level"] == "error" for finding in findings) else 0)
        assert document["ok"] is (code == 0)
        return {(finding["level"], finding["check"]): finding for finding in findings}

    return found


def test_a_clean_table_says_so_and_exits_0(run, won, make_table, tmp_path):
    path = make_table(won(16), won(64)).write(tmp_path)
    assert run("verify", path, "--strict") == (0, f"{path}: 1 table, 2 rows: clean\n", "")


def test_an_unknown_kernel_is_an_error(found, won):
    one = found(won(kernel="other"))["error", "kernel"]
    assert one["row"] == "matmul 64x512x256 float16 nn"
    assert one["problem"]["m"] == 64
    assert ("other" in one["found"], one["expected"]) == (True, "one of toy")
    assert "tuner run --shape 64x512x256" in one["advice"]


def test_an_op_that_nobody_serves_is_one_error_a_table(found, won, make_table):
    row = won(op="conv")
    findings = found(row, edit=lambda _: Table("conv", H200, "2026-01-31T12:00:00Z", (row, won(16, op="conv"))).dumps())
    assert "op 'conv', 2 rows" in findings["error", "op"]["found"]
    assert ("error", "kernel") not in findings


def test_a_table_of_an_adopted_library_passes_and_is_retimed_by_captured_calls_alone(
    compiling, make_row, make_table, tmp_path
):
    pytest.importorskip("triton")
    row = dataclasses.replace(
        make_row(), problem=Problem.keyed("my_lib-scale", {"n": 7}), config=Config("my_lib-scale", B=16)
    )
    table = make_table(row, op="my_lib-scale", device=INTERPRETER).write(tmp_path)
    for command, code, words in (
        (["verify", table], 0, "1 row of an adopted library's kernel: its configs are not checked"),
        (["retime", table, "--device", "interpreter"], 0, "unknown, an adopted library's kernel is launched by its"),
    ):
        done = compiling.tuner(*command, env=os.environ, cwd=tmp_path)
        said = done.stdout + done.stderr
        assert (done.returncode, words in said) == (code, True), said
        assert "--kernel MODULE:NAME" not in said


def test_a_config_that_cannot_run_on_the_tables_device_is_an_error(found, won):
    one = found(won(block=512))["error", "invalid"]
    assert "524288 bytes of shared memory" in one["found"]
    assert one["expected"] == f"what runs on {H200.name}"


def test_of_a_config_that_cannot_run_it_is_said_that_another_triton_measured_it(found, won):
    environment = Environment("3.6.0", "2.13.0", "cuda 13.0", "580.1", "3.11.7")
    made = dataclasses.replace(won().made, environment=environment)
    one = found(won(block=512, made=made))["error", "invalid"]
    assert one["expected"] == f"what runs on {H200.name} under Triton 3.7.1; measured under 3.6.0"


def test_a_problem_that_the_kernel_does_not_support_is_an_error(found, won):
    assert "no tt" in found(won(layout="tt"))["error", "invalid"]["found"]


def test_other_parameters_than_the_kernels_are_an_error(found, won):
    findings = found(won(config=Config("toy", BLOCK_SIZE_M=32, num_warps=4, num_stages=3)))
    assert "num_stages" in findings["error", "invalid"]["found"]


def test_a_config_that_no_search_would_try_is_a_warning(found, won):
    one = found(won(block=48))["warning", "untried"]
    assert "BLOCK_SIZE_M 48 is not in the search space" in one["found"]


def test_a_ladder_tries_configs_of_other_ms(run, won, make_table, make_family, tmp_path):
    path = make_table(won(64, block=48), families=(make_family(64),)).write(tmp_path)
    code, out, _ = run("verify", path, "--strict")
    assert (code, "untried" in out) == (0, False)


def test_the_default_config_is_always_tried(found, won, toy, install):
    spec = dataclasses.replace(toy, default_config=lambda problem, device: Config("toy", BLOCK_SIZE_M=48, num_warps=4))
    install(spec)
    assert found(won(block=48)) == {}


@pytest.mark.parametrize(("version", "advice"), [(0, "tuner run"), (2, "upgrade triton-tuner")])
def test_a_stale_kernel_version_is_an_error_in_what_ships(found, won, version, advice):
    one = found(won(version=version))["error", "stale"]
    assert f"version {version} of toy" in one["found"]
    assert advice in one["advice"]


def test_losing_to_the_default_beyond_a_tie_is_a_warning_and_to_the_vendor_a_note(found, won):
    findings = found(won(vs_default=0.9, vs_vendor=0.8))
    assert "0.900x" in findings["warning", "losing"]["found"]
    assert "0.800x" in findings["note", "losing"]["found"]
    assert found(won(vs_default=0.996)) == {}


def test_a_tie_is_what_the_finals_call_one():
    assert lint.TIE == finals.TIE


def test_missing_evidence_is_a_warning_and_missing_vendor_a_note(found, won):
    findings = found(won(vs_default=None, vs_vendor=None))
    assert "default" in findings["warning", "evidence"]["found"]
    assert "torch" in findings["note", "evidence"]["found"]
    unknown = dataclasses.replace(won().made, environment=Environment("", "2.13.0", "cuda 13.0", "580.1", "3.11.7"))
    assert found(won(made=unknown))["warning", "evidence"]["found"] == "no version of Triton"
    newer = dataclasses.replace(won().made, protocol=99)
    assert "protocol 99" in found(won(made=newer))["warning", "evidence"]["found"]
    assert "0 ties" in found(won(ties=0))["warning", "evidence"]["found"]


def test_several_environments_are_a_note(found, won):
    other = Environment("3.8.0", "2.14.0", "cuda 13.1", "590.1", "3.12.1")
    newer = dataclasses.replace(won().made, environment=other)
    text = found(won(16), won(32), won(64, made=newer))["note", "environments"]["found"]
    assert "2 under Triton 3.7.1" in text
    assert "1 under Triton 3.8.0" in text


def test_a_wrong_digest_is_an_error(found, won):
    findings = found(won(), edit=lambda text: text.replace('"median_us": 12.5', '"median_us": 1.5'))
    assert list(findings) == [("error", "digest")]


def test_a_problem_twice_is_an_error(found, won):
    def twice(text: str) -> str:
        document = json.loads(text)
        document["rows"] *= 2
        return json.dumps(document)

    assert found(won(), edit=twice)["error", "duplicate"]["row"] == "row 2"


def test_a_row_that_cannot_be_read_is_named_by_its_number(found, won):
    one = found(won(16), won(64), edit=lambda text: text.replace('"m": 64', '"m": "many"'))["error", "row"]
    assert (one["row"], "many" in one["found"]) == ("row 2", True)


def test_a_date_that_is_none_is_a_warning(found, won):
    assert list(found(won(), edit=lambda text: text.replace("2026-01-31", "once"))) == [("warning", "date")]


def test_an_unknown_device_is_a_note_and_the_interpreter_too(found, won):
    unknown = describe(name="NVIDIA X1", arch="sm_130", sm_count=9, memory_bytes=1, l2_bytes=1, shared_bytes=200_000)
    assert "nvidia-x1-sm130-9 is unknown here" in found(won(), device=unknown)["note", "device"]["found"]
    assert "interpreter" in found(won(), device=INTERPRETER)["note", "device"]["found"]


def test_a_slug_that_no_lookup_asks_for_is_an_error_and_odd_limits_a_warning(found, won):
    other = dataclasses.replace(H200, sm_count=78)
    assert "nvidia-h200-sm90-78" in found(won(), device=other)["error", "device"]["expected"]
    large = dataclasses.replace(H200, shared_bytes=10**9)
    assert str(ARCHES["sm_90"].shared_bytes) in found(won(), device=large)["warning", "device"]["expected"]


def test_strict_exits_1_for_warnings_but_not_for_notes(run, won, make_table, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    warned = make_table(won(vs_default=0.9)).write(tmp_path / "a")
    noted = make_table(won(vs_vendor=0.9)).write(tmp_path / "b")
    assert [run("verify", warned)[0], run("verify", warned, "--strict")[0]] == [0, 1]
    assert run("verify", noted, "--strict")[0] == 0
    code, out, _ = run("verify", warned, noted)
    assert code == 0
    assert f"{warned}: 1 table, 1 row: 1 warning" in out
    assert f"{noted}: 1 table, 1 row: 1 note" in out


def test_ten_notes_are_listed_and_the_others_counted(run, won, make_table, tmp_path):
    losing = [won(m, vs_vendor=0.9) for m in range(1, 12)]
    unknown = [won(m, vs_vendor=None) for m in range(20, 29)]
    table = make_table(*losing, *unknown, won(64, vs_default=0.9)).write(tmp_path)
    code, out, err = run("verify", table)
    levels = [line.split()[0] for line in out.splitlines()[2:]]
    assert (code, levels) == (0, ["warning"] + ["note"] * 10)
    assert [line.split()[1] for line in out.splitlines()[3:]].count("losing") == 5, "of each check as many"
    told = "10 of 20 notes, in turn of each check (losing: 11, evidence: 9): --notes lists all"
    assert err == f"{table}: {told}\n"
    code, out, err = run("verify", table, "--notes")
    assert (code, out.count("note "), err) == (0, 20, "")
    assert len(json.loads(run("verify", table, "--json")[1])["places"][0]["findings"]) == 21
    code, _, err = run("verify", table, "--notes", "--json")
    assert (code, err.startswith("tuner: --notes is for the listing")) == (2, True)


def test_a_folder_is_read_whole_and_a_file_that_no_lookup_finds_is_an_error(run, won, make_table, tmp_path):
    make_table(won()).write(tmp_path)
    (tmp_path / "broken--x.json").write_text("{")
    (tmp_path / "notes.json").write_text("{}")  # nobody's table
    (tmp_path / "mine.json").write_text(make_table(won(16), won()).dumps())
    code, out, _ = run("verify", tmp_path, "--json")
    (place,) = json.loads(out)["places"]
    assert (code, place["kind"], place["tables"], place["rows"]) == (1, "folder", 2, 3)
    found = {(Path(one["place"]).name, one["level"], one["check"]) for one in place["findings"]}
    assert ("broken--x.json", "error", "unreadable") in found
    assert ("mine.json", "error", "name") in found
    assert {check for _, _, check in found} == {"unreadable", "name", "duplicate"}


def test_a_file_of_another_name_that_lookups_read_all_the_same_is_a_warning(run, won, make_table, tmp_path):
    copy = tmp_path / f"old--matmul--{H200.slug}.json"
    copy.write_text(make_table(won()).dumps())
    tuner.use(tmp_path)
    assert tuner.lookup(won().problem, H200).rule == "exact"
    code, out, _ = run("verify", tmp_path, "--json")
    (finding,) = json.loads(out)["places"][0]["findings"]
    assert (code, finding["level"], finding["check"]) == (0, "warning", "name")
    assert finding["found"] == f"the file is called {copy.name}: in a folder or package lookups read it all the same"
    copy.rename(tmp_path / f"matmul--{H200.slug}-1.json")
    tuner.use(tmp_path)
    assert tuner.lookup(won().problem, H200).rule == "default"
    assert run("verify", tmp_path)[0] == 1


def test_an_empty_folder_and_a_table_without_rows_are_reported(run, won, make_table, tmp_path):
    assert run("verify", tmp_path)[0] == 1
    make_table().write(tmp_path)
    code, out, _ = run("verify", tmp_path)
    assert (code, "no row that can be read" in out) == (0, True)


def test_a_folder_that_has_a_database_alone_says_how_to_verify_that(run, tmp_path):
    (tmp_path / "winners.db").touch()
    code, out, _ = run("verify", tmp_path)
    assert code == 1
    assert "no table, but the database winners.db" in out
    assert f"tuner verify {tmp_path / 'winners.db'}" in out


def test_an_installed_packages_tables_are_found_by_its_name(run, won, make_table, tmp_path, monkeypatch):
    folder = tmp_path / "site" / "verified" / "tuned"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").write_text("raise SystemExit('nobody runs this')")
    make_table(won()).write(folder)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    code, out, _ = run("verify", "verified.tuned", "--json")
    assert (code, json.loads(out)["places"][0]["findings"][0]["check"]) == (1, "name")  # no entry point says so yet
    point = EntryPoint("verified", "verified.tuned", "tuner.tables")
    monkeypatch.setattr(sources, "entry_points", lambda group: [point])
    for name in ("verified.tuned", "verified"):
        assert run("verify", name) == (0, f"{name}: 1 table, 1 row: clean\n", "")


def test_a_database_is_checked_as_db_check_does_and_row_by_row(run, won, make_database, tmp_path):
    path = make_database(tmp_path / "tuner.db", won(), won(16, block=512), won(32, version=0))
    before = path.read_bytes()
    code, out, _ = run("verify", path, "--json")
    (place,) = json.loads(out)["places"]
    assert (code, place["kind"], place["rows"]) == (1, "database", 3)
    assert [(one["level"], one["check"]) for one in place["findings"]] == [("error", "invalid"), ("warning", "stale")]
    assert path.read_bytes() == before


def test_a_databases_rows_that_cannot_be_read_are_errors(run, won, make_database, tmp_path):
    path = make_database(tmp_path / "tuner.db", won(), won(16))
    make_database(path, won(), device=KNOWN["sm_100"])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE winner SET ties = 'two' WHERE winner_id = 1")
        connection.execute("UPDATE device SET sm_count = 'many' WHERE arch = 'sm_100'")
    code, out, _ = run("verify", path, "--json")
    (place,) = json.loads(out)["places"]
    assert (code, place["rows"]) == (1, 1)
    assert [(one["check"], one["row"]) for one in place["findings"]] == [
        ("database", ""),
        ("database", ""),
        ("row", "device 2"),
        ("row", "winner 1"),
    ]
    assert "row 2 of device: device.sm_count holds 'many': expected an integer" in place["findings"][0]["found"]
    assert "row 1 of winner: winner.ties holds 'two': expected a JSON list" in place["findings"][1]["found"]


def test_a_damaged_database_a_foreign_one_and_an_empty_one_are_reported(run, won, make_database, tmp_path):
    path = make_database(tmp_path / "tuner.db", won())
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = b"\xa5" * (len(content) - len(content) // 2)
    path.write_bytes(content)
    assert run("verify", path)[0] == 1
    empty = make_database(tmp_path / "empty.db")
    code, out, _ = run("verify", empty)
    assert (code, "no winner" in out, f"tuner run --db {empty}" in out) == (0, True, True)
    assert run("verify", "oracle://somebody:secret@nowhere/x")[0] == 1
    assert "secret" not in "".join(map(str, run("verify", "oracle://somebody:secret@nowhere/x")))


def test_what_is_not_there_exits_2(run, tmp_path):
    code, out, err = run("verify", tmp_path / "absent.json")
    assert (code, out) == (2, "")
    assert "absent.json is not there: expected a table, a folder of tables, a package or a database" in err
    assert run("verify", "nobody.has.this")[0] == 2
    assert run("verify")[0] == 2


def test_what_a_terminal_would_obey_is_shown_as_text(run, won, make_table, tmp_path):
    path = make_table(won()).write(tmp_path)
    path.write_text(path.read_text().replace('"float16"', '"\\u001b[31m\\ud800"'))
    code, out, _ = run("verify", path)
    assert code == 1
    assert "\x1b" not in out


def test_a_table_that_takes_long_is_told_with_an_estimate(found, won, monkeypatch, caplog):
    found(won(64), won(128), won(256))
    assert not caplog.records
    monkeypatch.setattr(progress, "SAMPLE_S", 0.0)
    monkeypatch.setattr(progress, "LONG_S", 0.0)
    found(won(64), won(128), won(256))
    (record,) = caplog.records
    assert record.getMessage().startswith(f"3 rows of matmul--{H200.slug}.json take about ")
