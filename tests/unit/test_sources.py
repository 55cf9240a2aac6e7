from __future__ import annotations

import importlib.resources
import json
import logging
import os
import re
import shutil
import sys
import textwrap
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

import tuner
from tuner.errors import TableError
from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.lookup import evidence, loaded_table, sources
from tuner.lookup import table as tables
from tuner.lookup.lookup import resolver
from tuner.problem import Problem

H200 = KNOWN["sm_90"]
PROBLEM = Problem(64, 512, 256)

pytestmark = pytest.mark.usefixtures("toy", "no_tables")


@pytest.fixture
def ship(tmp_path, monkeypatch):
    """Make a package importable that ships tables by an entry point, as installing its wheel would."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(sources, "entry_points", lambda group: points if group == "tuner.tables" else [])

    def make(name: str, *held, code: str = "") -> Path:
        folder = tmp_path / "site"
        for part in name.split("."):
            folder /= part
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").write_text(code)
        for table in held:
            table.write(folder)
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        points.append(EntryPoint(name.replace(".", "-"), name, "tuner.tables"))
        return folder

    return make


def source_of(problem: Problem = PROBLEM, device=H200) -> str:
    return tuner.lookup(problem, device).source


def test_sources_are_asked_in_order_and_the_first_hit_wins(
    tmp_path, monkeypatch, make_row, make_table, make_database, ship
):
    expected = []
    folder = ship("mylib.tuned", make_table(make_row()))
    tuner.use(None)
    assert source_of() == "package mylib.tuned"
    db = make_database(tmp_path / "user.db", make_row())
    monkeypatch.setenv("TUNER_DB", str(db))
    tuner.use(None)
    assert source_of() == f"database {db}"
    (tmp_path / "b").mkdir()
    path = make_table(make_row()).write(tmp_path / "b")
    monkeypatch.setenv("TUNER_TABLES", os.pathsep.join([str(tmp_path / "b"), str(path)]))
    tuner.use(None)
    assert source_of() == f"$TUNER_TABLES {tmp_path / 'b'}"
    for where in (path, folder, db):
        tuner.use(where)
        expected.append(str(where))
        assert source_of() == expected[-1]


def test_a_range_of_any_other_source_beats_an_exact_row_of_the_tables_that_come_with_triton_tuner(
    tmp_path, make_row, make_table, make_family, ship
):
    ship("triton.tuner", make_table(make_row(64), make_row(80)))  # the entry point triton-tuner
    (tmp_path / "near").mkdir()
    path = make_table(make_row(72), families=(make_family(72),)).write(tmp_path / "near")
    tuner.use(path)
    matches = {m: tuner.lookup(Problem(m, 512, 256), H200) for m in (72, 64, 63, 80)}
    assert {m: (match.rule, match.source) for m, match in matches.items()} == {
        72: ("exact", str(path)),
        64: ("family", str(path)),
        63: ("family", str(path)),
        80: ("exact", "package triton.tuner"),
    }
    tuner.use("triton-tuner")
    assert tuner.lookup(Problem(64, 512, 256), H200).rule == "exact"  # somebody named it


def test_tables_that_come_with_triton_tuner_are_not_read_where_another_source_serves(
    tmp_path, make_row, make_table, make_family, ship, monkeypatch
):
    folder = ship("triton.tuner", make_table(make_row(64), make_row(80)))
    (tmp_path / "near").mkdir()
    path = make_table(make_row(72), make_row(16, 1024), families=(make_family(72),)).write(tmp_path / "near")
    tuner.use(path)
    read, own = [], tables.read_bytes
    monkeypatch.setattr(tables, "read_bytes", lambda path: read.append(path) or own(path))
    for m in (72, 64, 63, 2):
        assert source_of(Problem(m, 512, 256)) == str(path)
        evidence.beats_vendor(Problem(m, 512, 256), H200)
    for n in (512, 1024):  # the latter has a row and no range
        assert evidence.is_tuned(Problem(80, n, 256), H200)
    assert read == []
    assert source_of(Problem(80, 512, 256)) == "package triton.tuner"
    evidence.beats_vendor(Problem(80, 512, 256), H200)
    assert [each.parent for each in read] == [folder]


def test_a_table_that_is_named_while_another_is_gone_through_is_asked(tmp_path, make_row, make_table, monkeypatch):
    (tmp_path / "late").mkdir()
    late = make_table(make_row(64, 1024)).write(tmp_path / "late")
    tuner.use(make_table(make_row(64, 512)).write(tmp_path))
    own, named = loaded_table.problem_of, []

    def problem_of(fields):
        if not named:
            named.append(tuner.use(late))  # as another thread may
        return own(fields)

    monkeypatch.setattr(loaded_table, "problem_of", problem_of)
    evidence.is_tuned(Problem(80, 2048, 256), H200)
    assert evidence.is_tuned(Problem(80, 1024, 256), H200)


def test_an_exact_row_of_a_later_source_beats_a_range_of_an_earlier_one(
    tmp_path, make_row, make_table, make_family, ship
):
    ship("mylib.tuned", make_table(make_row(64)))
    (tmp_path / "near").mkdir()
    tuner.use(make_table(make_row(96), families=(make_family(96),)).write(tmp_path / "near"))
    assert source_of() == "package mylib.tuned"
    assert source_of(PROBLEM.with_shape(63, 512, 256)).startswith(str(tmp_path / "near"))


def test_of_a_folder_only_this_devices_tables_are_read(tmp_path, make_row, make_table, monkeypatch, caplog):
    make_table(make_row()).write(tmp_path)
    make_table(make_row(), device=INTERPRETER).write(tmp_path)
    (tmp_path / "matmul--nvidia-b200-sm100-148.json").write_text("{ broken")
    (tmp_path / "package.json").write_text("{ somebody else's")
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
    assert tuner.lookup(PROBLEM, H200).rule == "exact"
    assert caplog.records == []


def test_of_a_folder_only_the_table_that_cannot_be_read_is_not_used(
    tmp_path, make_row, make_table, monkeypatch, caplog
):
    path = make_table(make_row()).write(tmp_path)
    (tmp_path / path.name.replace("matmul", "bmm")).write_text(path.read_text()[:100])
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
    assert tuner.lookup(PROBLEM, H200).rule == "exact"
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"a table of $TUNER_TABLES {tmp_path} is not used: {tmp_path}/bmm--")


def test_a_folder_without_tables_is_an_error_where_it_is_named_and_one_warning_from_the_environment(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "matmul.json").write_text("{}")  # renamed by somebody: no device in its name
    with pytest.raises(TableError, match=r"holds no table: expected files named <op>--<device slug>.json"):
        tuner.use(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TableError, match="the name of a table is empty: expected a table"):
        tuner.use("")
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
    tuner.use(None)
    assert tuner.lookup(PROBLEM, H200).rule == "default"
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "tuner.lookup.sources"]
    assert warning.startswith(f"$TUNER_TABLES {tmp_path} is not used: {tmp_path} holds no table: expected files named ")


def test_interpreter_rows_are_never_offered_to_a_gpu(tmp_path, make_row, make_table, make_database, caplog):
    tuner.use(make_table(make_row(), device=INTERPRETER).write(tmp_path))
    tuner.use(make_database(tmp_path / "tuner.db", make_row(), device=INTERPRETER))
    assert tuner.lookup(PROBLEM, H200).rule == "default"
    assert tuner.lookup(PROBLEM, INTERPRETER).rule == "exact"


def test_a_table_of_another_device_is_not_used_whatever_its_file_is_called(tmp_path, make_row, make_table):
    written = make_table(make_row(), device=KNOWN["sm_100"]).write(tmp_path)
    tuner.use(written.rename(tmp_path / f"matmul--{H200.slug}.json"))
    assert tuner.lookup(PROBLEM, H200).rule == "default"
    assert "it is for nvidia-b200-sm100-148" in tuner.explain(PROBLEM, H200)


def test_a_shipped_package_is_read_without_running_its_code(make_row, make_table, ship):
    ship("heavylib.inner.tuned", make_table(make_row()), code="raise RuntimeError('imported')")
    tuner.use(None)
    assert source_of() == "package heavylib.inner.tuned"
    assert not [name for name in sys.modules if name.startswith("heavylib")]


def test_a_package_without_init_files_is_read(make_row, make_table, ship):
    folder = ship("spacelib.tuned", make_table(make_row()))
    for init in (folder / "__init__.py", folder.parent / "__init__.py"):
        init.unlink()
    tuner.use(None)
    assert source_of() == "package spacelib.tuned"


def test_an_entry_point_that_names_no_package_is_one_warning(make_row, make_table, monkeypatch, caplog):
    for value in ("json:loads", "sys", "json.nothing.here"):
        monkeypatch.setattr(sources, "entry_points", lambda group, value=value: [EntryPoint("x", value, group)])
        caplog.clear()
        tuner.use(None)
        assert tuner.lookup(PROBLEM, H200).rule == "default"
        assert len([r for r in caplog.records if r.name == "tuner.lookup.sources"]) <= 1


def test_a_package_in_a_zip_file_is_read(tmp_path, make_row, make_table, ship, monkeypatch):
    import zipfile

    folder = ship("ziplib.tuned", make_table(make_row()))
    archive = tmp_path / "lib.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        for path in (folder.parent).rglob("*"):
            writer.write(path, path.relative_to(folder.parent.parent))
    for path in sorted(folder.parent.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.parent.rmdir()
    monkeypatch.syspath_prepend(str(archive))
    tuner.use(None)
    assert source_of() == "package ziplib.tuned"


def test_the_files_of_a_package_are_where_its_own_loader_says(tmp_path, make_row, make_table, ship, monkeypatch):
    """As of an editable install by meson-python, whose generated files lie in a build folder."""
    folder = ship("builtlib.tuned")
    make_table(make_row()).write(tmp_path)

    class Reader:
        def files(self):
            return tmp_path

    class Loader(SourceFileLoader):
        def get_resource_reader(self, _module):
            return Reader()

    class Finder:
        def find_spec(self, name, _path, _target=None):
            if name != "builtlib.tuned":
                return None
            loader = Loader(name, str(folder / "__init__.py"))
            return spec_from_file_location(name, loader.path, loader=loader, submodule_search_locations=[str(folder)])

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    tuner.use(None)
    assert source_of() == "package builtlib.tuned"


def test_an_entry_point_to_nowhere_is_one_warning_and_the_next_package_serves(make_row, make_table, ship, caplog):
    ship("alib.tuned", make_table(make_row()))
    ship("blib.tuned", make_table(make_row()))
    for path in importlib.resources.files("alib").joinpath("tuned").iterdir():
        path.unlink()
    importlib.resources.files("alib").joinpath("tuned").rmdir()
    tuner.use(None)
    assert source_of() == "package blib.tuned"
    assert [r.getMessage() for r in caplog.records if "no such package" in r.getMessage()]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("content", ["{ broken", '{"format": "triton-tuner table", "version": 99}', "SQLite"])
def test_a_broken_file_on_the_path_is_one_warning_and_an_empty_source(tmp_path, monkeypatch, content, caplog):
    path = tmp_path / "broken.json"
    path.write_text(content)
    monkeypatch.setenv("TUNER_TABLES", str(path))
    tuner.use(None)
    caplog.set_level(logging.WARNING, "tuner.lookup.sources")
    assert {tuner.lookup(Problem(m, 512, 256), H200).rule for m in (16, 32, 64)} == {"default"}
    assert len([r for r in caplog.records if r.name == "tuner.lookup.sources"]) == 1
    assert "not used" in tuner.explain(PROBLEM, H200)


def test_a_missing_file_on_the_path_is_one_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path / "gone.json"))
    tuner.use(None)
    tuner.lookup(PROBLEM, H200)
    assert [r for r in caplog.records if "gone.json" in r.getMessage() and r.name == "tuner.lookup.sources"]


def test_a_missing_database_is_nothing_and_is_not_made(tmp_path, caplog):
    tuner.lookup(PROBLEM, H200)
    assert [r.name for r in caplog.records] == ["tuner.lookup.lookup"]  # the miss alone
    assert list(tmp_path.iterdir()) == []


def test_an_empty_database_file_is_nothing(tmp_path, monkeypatch, caplog):
    (tmp_path / "new.db").touch()
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "new.db"))
    tuner.use(None)
    tuner.lookup(PROBLEM, H200)
    assert [r.name for r in caplog.records] == ["tuner.lookup.lookup"]


@pytest.mark.parametrize("url", ["postgresql://me:secret@host/db", "postgresql://me@host/db?password=secret"])
def test_a_database_server_is_one_warning_that_says_to_export_and_hides_the_password(url, monkeypatch, caplog):
    monkeypatch.setenv("TUNER_DB", url)
    tuner.use(None)
    tuner.lookup(PROBLEM, H200)
    tuner.lookup(PROBLEM.with_shape(128, 512, 256), H200)
    messages = [r.getMessage() for r in caplog.records if r.name == "tuner.lookup.sources"]
    assert len(messages) == 1
    assert "tuner export" in messages[0]
    assert "secret" not in caplog.text + tuner.explain(PROBLEM, H200)


def test_a_database_behind_is_one_warning_with_the_command(tmp_path, monkeypatch, make_database, make_row, caplog):
    import sqlite3

    path = make_database(tmp_path / "old.db", make_row())
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
    connection.close()
    monkeypatch.setenv("TUNER_DB", str(path))
    tuner.use(None)
    tuner.lookup(PROBLEM, H200)
    assert [r for r in caplog.records if "tuner db upgrade" in r.getMessage()]


@pytest.mark.parametrize("name", ["missing.json", "broken.json", "missing.db"])
def test_naming_what_cannot_be_read_is_an_error_and_changes_nothing(tmp_path, make_row, make_table, name):
    tuner.use(make_table(make_row()).write(tmp_path))
    (tmp_path / "broken.json").write_text("[]")
    before = tuner.lookup(PROBLEM, H200)
    with pytest.raises(TableError):
        tuner.use(tmp_path / name)
    assert tuner.lookup(PROBLEM, H200) is before


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("device", [H200, KNOWN["sm_100"]])
def test_naming_a_folder_with_a_damaged_table_is_an_error(tmp_path, make_row, make_table, device, content):
    make_table(make_row()).write(tmp_path)
    bad = tmp_path / f"bmm--{device.slug}.json"
    bad.write_bytes(content)
    with pytest.raises(TableError, match=re.escape(str(bad))):
        tuner.use(tmp_path)
    assert tuner.lookup(PROBLEM, H200).rule == "default"


@pytest.mark.parametrize("variable", ["TUNER_TABLES", "TUNER_DB"])
def test_a_path_that_cannot_be_looked_at_is_one_warning(variable, monkeypatch, caplog):
    monkeypatch.setenv(variable, "a" * 5000)
    tuner.use(None)
    assert tuner.lookup(PROBLEM, H200).rule == "default"
    (warning,) = [line for line in caplog.messages if "aaa" in line]
    assert "File name too long" in warning


@pytest.mark.parametrize("path", ["a" * 5000, "a\0b", "~nobody-of-this-name/a"])
def test_a_path_that_cannot_be_looked_at_cannot_be_named(path):
    for take in (tuner.use, tuner.record_misses):
        with pytest.raises(TableError) as raised:
            take(path)
        assert len(str(raised.value)) < 400


def test_a_folder_that_vanishes_after_it_was_named_is_one_warning(tmp_path, make_row, make_table, caplog):
    (tmp_path / "tables").mkdir()
    make_table(make_row()).write(tmp_path / "tables")
    tuner.use(tmp_path / "tables")
    shutil.rmtree(tmp_path / "tables")
    assert tuner.lookup(PROBLEM, H200).rule == "default"
    assert [line for line in caplog.messages if "cannot list" in line]


def test_naming_a_database_server_is_an_error():
    with pytest.raises(TableError, match="tuner export DIR --db URL"):
        tuner.use("postgresql://host/db")


def test_a_url_of_a_sqlite_file_can_be_named(tmp_path, make_row, make_database):
    tuner.use(f"sqlite:///{make_database(tmp_path / 'tuner.db', make_row())}")
    assert tuner.lookup(PROBLEM, H200).rule == "exact"


def test_a_table_with_bad_rows_is_one_warning(tmp_path, make_row, make_table, caplog):
    path = make_table(*(make_row(m) for m in range(16, 80))).write(tmp_path)
    document = json.loads(path.read_text())
    for row in document["rows"][:20]:
        row["layout"] = "qq"
    path.write_text(json.dumps(document))
    tuner.use(path)
    assert tuner.lookup(PROBLEM, H200).rule == "exact"
    (record,) = caplog.records
    assert "and 18 more" in record.getMessage()


def test_every_source_tells_its_devices(tmp_path, make_row, make_table, make_database, ship):
    table = make_table(make_row(), device=KNOWN["sm_80"])
    ship("mylib.tuned", table)
    tuner.use(make_database(tmp_path / "tuner.db", make_row()))
    tuner.use(table.write(tmp_path))
    tuner.use(tmp_path / "site" / "mylib" / "tuned")
    slugs = [[device.arch for device in source.devices()] for source in resolver().sources.all()]
    assert slugs == [["sm_80"], ["sm_80"], ["sm_90"], [], ["sm_80"]]


def test_reading_makes_and_changes_no_file(tmp_path, monkeypatch, make_row, make_table, make_database, ship):
    ship("mylib.tuned", make_table(make_row(32)))
    monkeypatch.setenv("TUNER_DB", str(make_database(tmp_path / "tuner.db", make_row())))
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
    make_table(make_row(16)).write(tmp_path)
    tuner.use(None)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    for m in (16, 32, 64, 100, 4096):
        tuner.lookup(PROBLEM.with_shape(m, 512, 256), H200)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before


def test_the_explanation_names_every_source_and_what_it_holds(tmp_path, make_row, make_table, ship):
    ship("mylib.tuned", make_table(make_row(), device=KNOWN["sm_80"]))
    tuner.use(make_table(make_row(512)).write(tmp_path))
    text = tuner.explain(PROBLEM, H200)
    assert (
        textwrap.dedent(f"""\
        matmul 64x512x256 float16 nn on {H200.slug}
        sources, in the order they are asked:
          1. {tmp_path}/matmul--{H200.slug}.json: 1 tuned problem for {H200.slug}
          2. database {tmp_path}/absent/tuner.db: not there
          3. package mylib.tuned: nothing for {H200.slug}; it has tables for nvidia-a100-sxm4-80gb-sm80-108
        config: toy(BLOCK_SIZE_M=16, num_warps=4)
        rule: default""")
        in text
    )
    assert "nearest tuned problems:\n  matmul 512x512x256 float16 nn" in text
    assert text.endswith("to tune it: tuner run --shape 1-512x512x256 --dtype float16 --layout nn")
