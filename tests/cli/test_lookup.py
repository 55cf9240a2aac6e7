from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.hardware.device import INTERPRETER, KNOWN, describe
from tuner.lookup import strict
from tuner.problem.family import Check

H200 = KNOWN["sm_90"]

pytestmark = pytest.mark.usefixtures("toy", "no_tables")


@pytest.fixture
def tables(tmp_path, make_table, make_row, make_family) -> Path:
    family = make_family(16, 128, check=Check(20, 1.004, 1.03))
    return make_table(make_row(16), make_row(128, block=64), families=(family,)).write(tmp_path)


@pytest.fixture
def db(tmp_path, make_database, make_row) -> Path:
    path = make_database(tmp_path / "tuner.db", make_row(64))
    return make_database(path, make_row(64, block=64), device=INTERPRETER)


def test_a_tuned_problem_shows_config_rule_grade_source_and_evidence(run, db):
    code, out, err = run("lookup", "64x512x256", "--db", db, "--device", H200.slug)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"matmul 64x512x256 float16 nn on {H200.slug}: toy(BLOCK_SIZE_M=32, num_warps=4)",
        f"rule exact, grade exact, from {db}",
        "12.50 us, 1.250 times as fast as the default config, 0.950 times as fast as torch's own, "
        "2 configs within 0.5%",
    ]


def test_an_untuned_problem_shows_the_command_and_exits_1(run, db):
    code, out, _ = run("lookup", "4096x512x256", "--db", db, "--device", "sm_90", "--dtype", "bf16", "--layout", "nt")
    assert code == 1
    assert "rule default" in out
    assert out.endswith("to tune it: tuner run --shape 1-4096x512x256 --dtype bfloat16 --layout nt\n")


def test_a_problem_of_a_tuned_family_shows_its_range_and_exits_0(run, tables, monkeypatch):
    monkeypatch.setenv("TUNER_TABLES", str(tables))
    code, out, _ = run("lookup", "100x512x256", "--device", "sm_90")
    assert code == 0
    assert "rule family" in out
    assert "M 17-128, measured, tuned for matmul 128x512x256 float16 nn: 12.50 us" in out
    assert out.endswith("tuner run --shape 100x512x256 --dtype float16 --layout nn\n")
    document = json.loads(run("lookup", "100x512x256", "--device", "sm_90", "--json")[1])
    assert (document["rule"], document["range"], document["tuned_for"]["m"]) == (
        "family",
        [17, 128, 128, "measured"],
        128,
    )
    assert document["expected_regret"] == 1.004
    assert "1.004 times as long" in run("lookup", "100x512x256", "--device", "sm_90", "--explain")[1]


def test_a_row_of_another_gpu_names_the_gpu_that_it_was_measured_on(run, tmp_path, monkeypatch, make_table, make_row):
    h100 = describe(name="H100", arch="sm_90", sm_count=132, memory_bytes=1 << 36, l2_bytes=1 << 25)
    make_table(make_row(64), device=h100).write(tmp_path)
    monkeypatch.setenv("TUNER_TABLES", str(tmp_path))
    asked = ("lookup", "64x512x256", "--device", H200.slug)
    code, out, _ = run(*asked)
    assert code == 0
    assert "rule same_arch" in out
    assert f"tuned for matmul 64x512x256 float16 nn on {h100.slug}: 12.50 us" in out
    assert json.loads(run(*asked, "--json")[1])["measured_on"] == h100.slug
    assert "none, nothing of the op matmul is tuned for this device" in run(*asked, "--explain")[1]


def test_what_serves_in_place_of_a_compile_is_explained_and_a_nonsense_value_is_one_line(run, db, monkeypatch):
    asked = ("lookup", "64x512x256", "--db", db, "--device", H200.slug, "--explain")
    for value, said in (("1", True), ("0", False)):
        monkeypatch.setattr(strict, "_on", None)
        monkeypatch.setenv("TUNER_STRICT", value)
        assert ("no binary of this config ships, torch's library serves" in run(*asked)[1]) is said
    monkeypatch.setattr(strict, "_on", None)
    monkeypatch.setenv("TUNER_STRICT", "maybe")
    code, out, err = run(*asked)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tuner: $TUNER_STRICT is 'maybe': expected 1")


@pytest.mark.parametrize(
    "option", [("--layout", "nt"), ("--scaling", "row"), ("--precision", "tf32"), ("--invariant",)]
)
def test_what_a_problem_says_itself_is_no_option(run, option):
    code, out, err = run("lookup", "--kernel", "matmul", "--problem", "M=8,N=64,K=64", *option)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{option[0]} is for a shape: type it in --problem" in err


def test_tf32_is_asked_for_by_an_option_and_so_is_its_command(run):
    asked = ("64x512x256", "--dtype", "fp32", "--layout", "nt")
    code, out, _ = run("lookup", *asked, "--precision", "tf32", "--device", "sm_90")
    assert code == 1
    assert out.startswith("matmul 64x512x256 float32 nt tf32 on ")
    typed = "tuner run --shape 1-512x512x256 --dtype float32 --layout nt --precision tf32"
    assert typed in out
    assert "--precision" not in run("lookup", *asked, "--device", "sm_90")[1]


def test_json_holds_the_whole_answer(run, db):
    code, out, _ = run("lookup", "64x512x256", "--db", db, "--device", "sm_90", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["config"] == {"BLOCK_SIZE_M": 32, "num_warps": 4}
    assert (document["rule"], document["grade"], document["source"]) == ("exact", "exact", str(db))
    assert (document["problem"]["m"], document["tuned_for"]["m"], document["median_us"]) == (64, 64, 12.5)
    assert (document["range"], document["fallen"]) == (None, [])
    assert document["sources"][0] == {"name": str(db), "holds": f"1 tuned problem for {H200.slug}"}


def test_explain_lists_sources_and_the_nearest_tuned_problems(run, db):
    code, out, _ = run("lookup", "512x512x256", "--db", db, "--device", "sm_90", "--explain")
    assert code == 1
    assert f"1. {db}: 1 tuned problem for {H200.slug}" in out
    assert "nearest tuned problems:\n  matmul 64x512x256 float16 nn" in out


def test_without_a_gpu_the_interpreter_is_looked_up_for(run, db, monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = run("lookup", "64x512x256", "--db", db)
    assert code == 0
    assert "on interpreter: toy(BLOCK_SIZE_M=64" in out
    assert "no GPU here" in err


def test_a_device_that_only_a_database_knows_can_be_named(run, tmp_path, make_database, make_row):
    odd = describe(name="NVIDIA Odd", arch="sm_86", sm_count=7, memory_bytes=2**33, l2_bytes=2**20)
    path = make_database(tmp_path / "odd.db", make_row(64), device=odd)
    assert run("lookup", "64x512x256", "--db", path, "--device", odd.slug)[0] == 0
    code, _, err = run("lookup", "64x512x256", "--device", "nvidia-odder")
    assert code == 2
    assert "expected one of" in err


def test_a_slip_in_a_variable_that_would_stop_the_process_is_told(run, monkeypatch):
    monkeypatch.setattr(strict, "_on", None)
    monkeypatch.setenv("TUNER_STRICT", "yes")
    code, out, err = run("lookup", "64x512x256")
    assert (code, out) == (2, "")
    assert err == "tuner: $TUNER_STRICT is 'yes': expected 1, to compile nothing while serving, or 0\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["64x512"], "MxNxK"),
        (["0x512x256"], "M must be from 1"),
        (["64x512x256", "--dtype", "fp12"], "unknown dtype"),
        (["64x512x256", "--layout", "zz"], "unknown layout"),
        (["64x512x256", "--device", "tpu"], "unknown device"),
        ([], "expected a shape, 4096x4096x1024, or --kernel MODULE:NAME with --problem"),
        (
            ["--kernel", "softmax", "--problem", "M=4,N=8", "--problem", "M=4,N=9"],
            "found --kernel softmax, --problem M=4,N=8, --problem M=4,N=9: expected one problem alone: a shape, ",
        ),
        (["64x512x256", "--kernel", "softmax"], "found 64x512x256, --kernel softmax: expected one problem alone: "),
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_wrong(run, arguments, words):
    code, out, err = run("lookup", *arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_a_table_that_cannot_be_read_is_said_once_though_a_device_is_named(run, tmp_path, monkeypatch, caplog):
    table = tmp_path / "matmul--mine.json"
    table.write_text("{ broken")
    monkeypatch.setenv("TUNER_TABLES", str(table))
    code, out, _ = run("lookup", "64x512x256", "--device", "sm_90")
    assert (code, "rule default" in out) == (1, True)
    assert len([record for record in caplog.records if record.name == "tuner.lookup.sources"]) == 1


def test_an_empty_name_of_a_database_is_refused_not_taken_for_the_users_own(run):
    assert run("lookup", "64x512x256", "--db", "")[0] == 2


def test_a_database_that_is_not_there_is_one_line_and_is_not_made(run, tmp_path):
    code, _, err = run("lookup", "64x512x256", "--db", tmp_path / "gone.db", "--device", "sm_90")
    assert (code, len(err.splitlines())) == (1, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_problem_no_kernel_serves_is_one_line(run):
    code, _, err = run("lookup", "64x512x256", "--layout", "tt", "--device", "sm_90")
    assert (code, len(err.splitlines())) == (1, 1)
    assert "no tt" in err


def test_the_real_kernels_answer_from_a_fresh_process(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed: no kernel answers")
    environment = {**os.environ, "TUNER_DB": str(tmp_path / "none.db")}
    command = [sys.executable, "-m", "tuner", "lookup", "4096x4096x4096", "--dtype", "bf16", "--device", "sm_90"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (1, "")
    assert "BLOCK_SIZE_M=" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_json_names_the_nearest_tuned_problems_as_the_explanation_does(run, db):
    asked = ("--db", db, "--device", H200.slug)
    near = json.loads(run("lookup", "4096x512x256", *asked, "--json")[1])["nearest"]
    assert [problem["m"] for problem in near] == [64]
    assert "nearest tuned problems:\n  matmul 64x512x256" in run("lookup", "4096x512x256", *asked, "--explain")[1]
    assert json.loads(run("lookup", "64x512x256", *asked, "--json")[1])["nearest"] == []


BROKEN = """
import dataclasses
from tuner.kernels.gemm.pointer.spec import SPEC as POINTER

def supports(problem, device):
    return problem.nothing

SPEC = dataclasses.replace(POINTER, name="broken", supports=supports)
ALONE = dataclasses.replace(POINTER, op="alone", name="lone", default_config=lambda *_: {"BLOCK": 16})
"""


def test_a_third_partys_kernel_whose_code_raises_is_one_line_that_names_it_and_others_serve(compiling, tmp_path):
    (tmp_path / "broken.py").write_text(BROKEN)
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[tuner.kernels]\nmatmul.broken = broken:SPEC\nalone.lone = broken:ALONE\n")
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    own = {"PYTHONPATH": path, "TUNER_DB": str(tmp_path / "absent.db")}
    failed = (
        "supports of the kernel matmul/broken failed: AttributeError: 'Problem' object has no attribute 'nothing': "
        "mend it, or uninstall its package"
    )

    def typed(*command: str) -> tuple[int, str, str]:
        done = compiling.tuner(*command, env=os.environ | own, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    inspected = typed("inspect", "broken", "--problem", "M=16,N=16,K=16", "--target", "cuda:90")
    assert inspected == (1, "", f"tuner: {failed}\n")
    code, out, err = typed("lookup", "16x16x16", "--device", "sm_90")
    assert (code, err) == (1, f"WARNING tuner.kernel.registry: {failed}; meanwhile others serve\n")
    assert out.startswith("matmul 16x16x16 float16 nn on nvidia-h200-sm90-132: ")
    assert "\nrule default, " in out
    alone = typed("lookup", "--kernel", "alone", "--problem", "M=16,N=16,K=16", "--device", "sm_90")
    returned = (
        "default_config of the kernel alone/lone returned {'BLOCK': 16}: expected a Config that has its name: "
        "mend it, or uninstall its package"
    )
    assert alone[:2] == (1, "")
    assert alone[2].endswith(f"on NVIDIA H200: {returned}\n")
