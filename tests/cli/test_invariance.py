"""`tuner verify --invariance` and `tuner run --invariant`."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("triton")

from tuner.bench import invariance
from tuner.bench.invariance import PlayedFamily
from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup import sources
from tuner.lookup.row import Row
from tuner.problem import Problem

CONFIG = Config("pointer", BLOCK_SIZE_M=32, BLOCK_SIZE_N=32, BLOCK_SIZE_K=32, GROUP_SIZE_M=1, num_stages=1, num_warps=4)
ON = ("--device", "interpreter")


@pytest.fixture
def table(no_tables, tmp_path, make_row, make_table, make_family):
    """A table with an invariant family for Ms from 1 to 40, and a plain row."""
    problem, version = Problem(40, 48, 64, dtype="fp32", invariant=True), registry.find("matmul", "pointer").version
    rows = [Row(each, CONFIG, version, make_row().made, 10.0, 1.0, 1.0, 1) for each in (problem, Problem(40, 48, 64))]
    return make_table(*rows, device=INTERPRETER, families=(make_family(40, problem=problem),)).write(tmp_path)


def test_the_ms_that_a_family_serves_are_played_under_what_a_lookup_gives(table):
    ((problem, configs),) = invariance.families(sources.named(table), INTERPRETER)
    assert problem == Problem(40, 48, 64, dtype="fp32", invariant=True)
    assert configs == dict.fromkeys((1, 8, 32, 40), CONFIG)


def test_a_family_is_right_if_every_m_was_played_and_no_bit_differs():
    problem = Problem(40, 48, 64, invariant=True)
    assert PlayedFamily(problem, {}, {1: 0, 40: 0}).is_right
    assert not PlayedFamily(problem, {}, {1: 1, 40: 0}).is_right
    assert not PlayedFamily(problem, {}, {}, "no memory").is_right


def test_rows_are_compared_on_the_device(table, run):
    code, out, _ = run("verify", table, "--invariance", *ON)
    assert code == 0
    assert out.splitlines()[-1].split() == ["matmul", "Mx48x64", "float32", "nn", "invariant=True", "1,8,32,40", "0"]
    code, out, _ = run("verify", table, "--invariance", *ON, "--json")
    (family,) = json.loads(out)["families"]
    assert (code, family["changed"]) == (0, {"1": 0, "8": 0, "32": 0, "40": 0})
    assert family["configs"]["8"] == str(CONFIG)


def test_rows_that_differ_are_a_failure(table, run, monkeypatch):
    other = CONFIG.replace(BLOCK_SIZE_M=64, BLOCK_SIZE_N=64, BLOCK_SIZE_K=64)
    problem = Problem(40, 48, 64, dtype="fp32", invariant=True)
    monkeypatch.setattr(invariance, "families", lambda *_: [(problem, {8: other, 40: CONFIG})])
    code, out, _ = run("verify", table, "--invariance", *ON)
    assert (code, out.splitlines()[-1].split()[-1]) == (1, "8")


def test_an_interrupt_shows_the_families_that_are_done(table, run, monkeypatch):
    ((problem, configs),) = invariance.families(sources.named(table), INTERPRETER)

    def play(*_):
        yield PlayedFamily(problem, configs, {1: 0, 40: 0})
        raise KeyboardInterrupt

    monkeypatch.setattr(invariance, "families", lambda *_: [(problem, configs)] * 3)
    monkeypatch.setattr(invariance, "play", play)
    code, out, err = run("verify", table, "--invariance", *ON)
    assert (code, len(out.splitlines())) == (130, 2)
    assert "2 families not measured" in err.splitlines()
    code, out, _ = run("verify", table, "--invariance", *ON, "--json")
    assert (code, len(json.loads(out)["families"]), json.loads(out)["unplayed"]) == (130, 1, 2)


def test_wrong_usage_is_one_line(table, run, tmp_path, make_row, make_database):
    database = make_database(tmp_path / "tuner.db", make_row(64), device=INTERPRETER)
    for arguments, words in (
        (("verify", table, database, "--invariance", *ON), "--invariance takes one table"),
        (("verify", table, "--invariance", "--regret", *ON), "type one of them"),
        (("verify", table, "--invariance", "--sample", "3", *ON), "--sample goes with --regret"),
        (("verify", table, *ON), "--device goes with --regret or --invariance"),
        (("verify", database, "--invariance", *ON), "has no invariant problem for interpreter: tune some"),
        (("run", "--kernel", "vector_add", "--invariant"), "--invariant is for --suite and --shape"),
        (("run", "--shape", "16x16x16", "--invariant", "--layout", "n"), "unknown layout"),
        (("run", "--suite", _suite(tmp_path), "--invariant"), "bmm has no invariant form"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert words in err
        assert len(err.splitlines()) == 1


@pytest.mark.long
def test_what_is_tuned_invariant_is_looked_up_so(run, tmp_path):
    shape = ("1-3x32x32", "--dtype", "fp32", "--invariant", "--db", tmp_path / "tuner.db")
    code, out, _ = run("run", "--shape", *shape, *ON, "--json")
    assert code == 0
    assert {row["problem"]["extras"]["invariant"] for row in json.loads(out)["problems"]} == {True}
    found = ("--dtype", "fp32", "--db", tmp_path / "tuner.db", "--device", "interpreter")
    assert run("lookup", "2x32x32", *found)[0] == 1
    assert run("lookup", "2x32x32", *found, "--invariant")[0] == 0
    code, out, _ = run("verify", tmp_path / "tuner.db", "--invariance", *ON)
    assert (code, out.splitlines()[-1].split()[-2:]) == (0, ["1,3", "0"])


def _suite(folder):
    path = folder / "ours.csv"
    path.write_text("op,m,n,k,dtype,layout,batch\nbmm,16,16,16,fp16,nn,2\n")
    return path
