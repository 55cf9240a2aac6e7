"""`tuner bench` as a user meets it: real processes on Triton's interpreter, real files, real signals."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tuner.cli.bench import _listed
from tuner.hardware.device import INTERPRETER
from tuner.problem import Problem

pytest.importorskip("triton")

TUNER = [sys.executable, "-m", "tuner"]
SUITE = "m,n,k,dtype,layout,group\n16,16,16,float16,nn,small\n16,32,16,float32,nt,small\n16,16,16,float16,nn,twice\n"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def bench(compiling, tmp_path):
    """Runs `tuner bench` in a process that has imported torch, without a database but what --db names."""

    def run(*arguments, **environment):
        own = {"TUNER_DB": str(tmp_path / "tuner.db"), "TRITON_INTERPRET": "0", **environment}
        return compiling.tuner("bench", *arguments, env={**os.environ, **own}, cwd=tmp_path)

    return run


def test_a_suite_is_played_shown_written_and_drawn(bench, tmp_path):
    (tmp_path / "ours.csv").write_text(SUITE)
    problems = ("--suite", "ours.csv", "--shape", "32x16x16")
    done = bench(*problems, "--against", "autotune,vendor", "--rounds", "3", "--out", "o")
    assert done.returncode == 0, done.stderr
    assert "no GPU found: running on Triton's interpreter, which may take minutes; its figures say" in done.stderr
    assert "not tuned for interpreter: 3 of 3 problems, timed by the default" in done.stderr

    document = json.loads((tmp_path / "o" / "bench.json").read_text())
    assert document["device"]["slug"] == "interpreter"
    assert document["contestants"] == ["tuner", "vendor", "autotune"]
    assert document["unplayed"] == 0
    first = document["rows"][0]
    assert first["places"] == [{"suite": "ours", "group": "small"}, {"suite": "ours", "group": "twice"}]
    assert first["rule"] == "default"
    assert first["flops"] == 2 * 16**3
    assert first["bytes_moved"] == 3 * 16 * 16 * 2
    played = first["contestants"]
    assert played["tuner"]["rounds"] == played["vendor"]["rounds"] == 3
    assert played["tuner"]["time_over_ours"] is None
    assert played["vendor"]["time_over_ours"]["low"] <= played["vendor"]["time_over_ours"]["ratio"]
    assert played["vendor"]["p20_us"] <= played["vendor"]["median_us"] <= played["vendor"]["p80_us"]
    assert played["autotune"] == {"reason": "needs a GPU: the interpreter times vendor only"}
    means = {(mean["label"], mean["rival"]): mean["rows"] for mean in document["geomeans"]}
    assert means == {
        ("all", "vendor"): 3,
        ("ours", "vendor"): 2,
        ("shapes", "vendor"): 1,
        ("ours small", "vendor"): 2,
        ("ours twice", "vendor"): 1,
    }

    for row in document["rows"]:
        shape = "{m}x{n}x{k}".format(**row["problem"])
        (line,) = [line for line in done.stdout.splitlines() if f"matmul {shape} " in line]
        found = line.split()
        for name in ("tuner", "vendor"):
            assert f"{row['contestants'][name]['median_us']:.2f}" in found
        assert f"{row['contestants']['vendor']['time_over_ours']['ratio']:.3f}x" in found
        assert row["kernel"] in found
        assert found[-3:] == ["-", "-", "-"]
    files = {path.name for path in (tmp_path / "o").iterdir()}
    assert files == {"bench.json", "bars-ours.png", "bars-shapes.png"}
    for name in files - {"bench.json"}:
        assert (tmp_path / "o" / name).read_bytes().startswith(PNG)


def test_without_the_vendors_library_there_are_no_bars_and_a_line_says_so(bench, tmp_path):
    done = bench("--shape", "16x16x16", "--against", "autotune", "--rounds", "1", "--out", "o")
    assert done.returncode == 0, done.stderr
    assert "no bars: they show speeds relative to the vendor's library; --against vendor times it" in done.stderr
    assert [path.name for path in (tmp_path / "o").iterdir()] == ["bench.json"]


def test_json_is_one_document_and_a_database_decides_the_config(bench, tmp_path, make_row, make_database):
    from tuner.kernel import registry

    spec = registry.find("matmul", "pointer")
    config = spec.default_config(Problem(16, 16, 16), INTERPRETER)
    row = make_row(16, 16, 16, config=config, version=spec.version)
    database = make_database(tmp_path / "other.db", row, device=INTERPRETER)
    done = bench("--shape", "16x16x16", "--device", "interpreter", "--db", str(database), "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert (row["rule"], row["kernel"], row["config"]) == ("exact", "pointer", dict(config))
    assert row["contestants"]["tuner"]["rounds"] == 5
    assert "not tuned" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "no problem given: name some with --suite llm"),
        (["--shape", "64x64"], 2, "not a shape: '64x64'"),
        (["--shape", "1-64x64x32"], 2, "range of Ms, which is for tuner run: expected one M, such as 64x64x32"),
        (["--shape", "64x64x64", "--against", "vendor,cublas"], 2, "'cublas' is no rival: expected some of vendor,"),
        (["--shape", "64x64x64", "--against", ","], 2, "no rival is named"),
        (["--shape", "64x64x64", "--device", "cuda:0,cuda:1"], 2, "a bench runs on one GPU"),
        (["--shape", "64x64x64", "--device", "h200"], 2, "expected auto, cuda:0 or interpreter"),
        (["--shape", "64x64x64", "--device", "cuda:7"], 1, "no GPU cuda:7"),
        (["--shape", "64x64x64", "--rounds", "0"], 2, "0 is not in the range x>=1"),
        (["--suite", "demo", "--dtype", "bf16"], 2, "--dtype is for problems by --shape: a suite says its own"),
        (["--curve", "fp16", "--layout", "nt"], 2, "--layout is for problems by --shape"),
        (["--curve", "fp12"], 2, "'fp12' is not one of 'fp16', 'fp8'"),
        (["--suite", "no_such_suite"], 2, "unknown suite 'no_such_suite'"),
        (["--shape", "64x64x64", "--out", "taken"], 1, "taken is not a folder"),
        (["--shape", "64x64x64", "--db", "nowhere.db"], 1, "nowhere.db"),
    ],
)
def test_bad_input_is_one_clear_line(run, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNER_DB", "tuner.db")
    (tmp_path / "taken").write_text("a file")
    ended, out, error = run("bench", *arguments)
    assert ended == code, error
    assert message in error
    assert "Traceback" not in error
    assert out == ""


def test_suites_of_one_name_have_means_of_their_own(tmp_path):
    names = [str(tmp_path / folder / "ours.csv") for folder in ("one", "two")]
    for name, n in zip(names, (16, 32), strict=True):
        Path(name).parent.mkdir()
        Path(name).write_text(f"m,n,k,dtype,layout\n16,{n},16,fp16,nn\n")
    (tmp_path / "shapes.csv").write_text("m,n,k,dtype,layout\n16,48,16,fp16,nn\n")
    suites = [*names, names[0], str(tmp_path / "shapes.csv"), "demo"]
    found = _listed(suites, [Problem(8, 8, 8)], ())
    assert [[place.suite for place in each.places] for each in found][:3] == [[names[0]], [names[1]], [suites[3]]]
    assert {place.suite for each in found for place in each.places} == {*suites[:4], "demo", "shapes"}
    ((only, *_), *_) = [each.places for each in _listed(names[:1], (), ())]
    assert only.suite == "ours"


def test_without_vl_convert_out_is_refused_before_anything_is_measured(bench, tmp_path):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "vl_convert.py").write_text("raise ImportError('blocked')\n")
    done = bench("--shape", "16x16x16", "--out", "o", PYTHONPATH=str(blocked))
    assert done.returncode == 1
    assert "pip install 'triton-tuner[report]'" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupt_shows_and_writes_the_rows_that_are_done(stopped_after_one, tmp_path, number):
    # The second problem takes the interpreter minutes.
    shapes = ("--shape", "16x16x16", "--shape", "2048x2048x512")
    command = [*TUNER, "bench", *shapes, "--device", "interpreter", "--out", tmp_path / "o", "--rounds", "2"]
    output, errors = stopped_after_one(command, number, TUNER_DB=str(tmp_path / "tuner.db"), TRITON_INTERPRET="0")
    assert "matmul 16x16x16" in output
    assert "1 problem not measured" in errors
    assert "Traceback" not in errors
    document = json.loads((tmp_path / "o" / "bench.json").read_text())
    assert len(document["rows"]) == document["unplayed"] == 1
    assert not list(Path(tmp_path / "o").glob(".*"))
