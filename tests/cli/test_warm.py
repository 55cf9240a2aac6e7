"""`tuner warm` says in one line why there is nothing to compile."""

from __future__ import annotations

import pytest

from tuner.hardware.device import INTERPRETER, KNOWN

H200, B200 = KNOWN["sm_90"], KNOWN["sm_100"]

pytestmark = pytest.mark.usefixtures("toy", "no_tables")
pytest.importorskip("torch", reason="it asks torch for the GPU")


@pytest.fixture
def table(tmp_path, make_row, make_table):
    return make_table(make_row(16)).write(tmp_path)


def refused(run, *arguments: object) -> str:
    code, out, err = run("warm", *arguments)
    assert (code != 0, out) == (True, "")
    (line,) = err.splitlines()
    return line


def test_what_cannot_be_warmed_is_one_line(run, table, tmp_path, monkeypatch, make_row, make_table):
    asked = f"no GPU here: name what to compile for, --device NAME, one of {H200.slug}"
    assert refused(run, table) == f"tuner: {asked}"
    assert f"no row of {B200.slug} in {table}" in refused(run, table, "--device", B200.slug)
    assert "unknown-gpu" in refused(run, table, "--device", "unknown-gpu")
    assert "is not there" in refused(run, tmp_path / "nowhere.json", "--device", H200.slug)
    (tmp_path / "stale").mkdir()
    stale = make_table(make_row(16, version=99), make_row(32, version=99)).write(tmp_path / "stale")
    why = "all stale: measured with version 99 of toy, here is 1: tune again with `tuner run`"
    assert f"{stale}: 2 rows of {H200.slug}, {why}" in refused(run, stale, "--device", H200.slug)
    (tmp_path / "interpreted").mkdir()
    interpreted = make_table(make_row(16), device=INTERPRETER).write(tmp_path / "interpreted")
    asked = refused(run, interpreted, "--device", "interpreter")
    assert asked.endswith("the interpreter compiles nothing: name a GPU, --device NAME")
    assert refused(run, table, "--device", "interpreter") == asked, "also where it has no row for it"
    assert refused(run, interpreted).endswith("is for one: name tables of a GPU")
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)
    assert refused(run, table).endswith("the interpreter compiles nothing: unset TRITON_INTERPRET")


def test_a_database_may_be_named_by_its_url_and_a_password_is_not_shown(run, tmp_path, make_database, make_row):
    url = f"sqlite:///{make_database(tmp_path / 'tuner.db', make_row(16))}"
    assert f"no row of {B200.slug} in {url}" in refused(run, url, "--device", B200.slug)
    said = refused(run, "postgresql://me:secret@host/tuner", "--device", H200.slug)
    assert "postgresql://host/tuner is not read at run time" in said
