"""`tuner export --format vllm|sglang|triton`: what others read, in their names and layout."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tuner.hardware.device import INTERPRETER, KNOWN, Device, Environment
from tuner.kernel.config import Config, Value
from tuner.problem import Problem
from tuner.store.records import KernelVersion, Outcome, State, Trial, Verdict
from tuner.store.store import Store

H200, MI300X = KNOWN["sm_90"], KNOWN["gfx942"]
ENVIRONMENT = Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7")
FIXTURES = Path(__file__).parent / "fixtures"
OF_VLLM = FIXTURES / "N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
OF_SGLANG = FIXTURES / "N=1536,K=7168,device_name=AMD_Instinct_MI300X,dtype=fp8_w8a8,block_shape=[128, 128].json"

pytestmark = pytest.mark.usefixtures("no_tables")


@pytest.fixture(autouse=True)
def _no_kernel_is_installed(install) -> None:
    """So that winners of any version ship."""
    install()


def scaled(m: int, n: int = 2112, k: int = 7168, **parts: str | bool) -> Problem:
    return Problem(m, n, k, **{"dtype": "float8_e4m3fn", "layout": "nt", "scaling": "block", **parts})


def ours(theirs: dict[str, int], **more: Value) -> Config:
    return Config("block_scaled", **{**theirs, "LOADS": "pointer", "SPLIT_K": 1, "SWAP_AB": False, **more})


@pytest.fixture
def tuned(tmp_path) -> Callable[..., Path]:
    """A database in which the first config of a problem won and the others were measured too, each 1 us slower."""
    path = tmp_path / "tuner.db"

    def tuned(
        problem: Problem, *configs: Config, on: Device = H200, under: Environment = ENVIRONMENT, version: int = 1
    ) -> Path:
        with Store.open(str(path)) as store:
            opened = store.begin_run(on, under, argv=[], host="h")
            kernel = KernelVersion("matmul", configs[0].kernel, version, "s")
            outcomes = [Outcome(State.COMPLETE, median_us=10.0 + i, samples=9) for i in range(len(configs))]
            trials = [Trial(problem, c, kernel, outcome) for c, outcome in zip(configs, outcomes, strict=True)]
            store.record(opened, trials)
            store.decide(opened, problem, kernel, Verdict(configs[0], 10.0, None, None, configs[:1]))
        return path

    return tuned


@pytest.mark.parametrize(
    ("dialect", "real", "device"), [("vllm", OF_VLLM, H200), ("sglang", OF_SGLANG, MI300X)], ids=["vllm", "sglang"]
)
def test_winners_that_say_what_a_real_file_says_give_its_name_and_its_bytes(
    tmp_path, run, tuned, dialect, real, device
):
    n, k = (int(part.split("=")[1]) for part in real.name.split(",")[:2])
    for m, theirs in reversed(json.loads(real.read_text()).items()):
        db = tuned(scaled(int(m), n, k), ours(theirs), on=device)
    code, out, err = run("export", tmp_path / "out", "--db", db, "--format", dialect)
    rows = len(json.loads(real.read_text()))
    assert (code, out, err) == (0, f"{tmp_path / 'out' / real.name}: {rows} rows\n", "")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [real.name]
    assert (tmp_path / "out" / real.name).read_bytes() == real.read_bytes()


def test_vllm_and_sglang_spell_one_name_differently(tmp_path, run, tuned):
    db = tuned(scaled(64), ours({"BLOCK_SIZE_M": 64, "num_warps": 4}))
    for dialect, shape in (("vllm", "[128,128]"), ("sglang", "[128, 128]")):
        assert run("export", tmp_path / dialect, "--db", db, "--format", dialect)[0] == 0
        (path,) = (tmp_path / dialect).iterdir()
        assert path.name == f"N=2112,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape={shape}.json"


TILE = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 128,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 8,
    "num_warps": 4,
    "num_stages": 3,
}


def test_what_only_our_kernel_can_do_is_replaced_by_the_fastest_that_theirs_can(tmp_path, run, tuned):
    better, worse = {**TILE, "num_warps": 8}, TILE
    by_tma = ours(TILE, LOADS="tma")
    for place in ({"under": Environment("3.6.0", "", "", "", "")}, {"version": 0}, {"on": MI300X}):
        tuned(scaled(16), ours({**TILE, "num_stages": 2}), **place)  # not where the winner was measured
    tuned(scaled(16), by_tma, ours(TILE, SPLIT_K=2), ours(TILE, SWAP_AB=True), ours(better), ours(worse))
    db = tuned(scaled(64), ours(worse), ours(better))
    code, _, err = run("export", tmp_path / "out", "--db", db, "--format", "vllm", "--device", H200.slug)
    (path,) = (tmp_path / "out").iterdir()
    assert code == 0
    assert json.loads(path.read_text()) == {"16": better, "64": worse}
    assert "1 row in the fastest config measured that their kernel can run, instead of their winner's\n" in err
    assert json.loads(run("export", tmp_path, "--db", db, "--format", "vllm", "--json")[1])["replaced"] == 1


def test_a_winner_by_another_kernel_is_replaced_by_what_theirs_was_measured_with_last(tmp_path, run, tuned):
    older, newer = {**TILE, "num_warps": 8}, TILE
    tuned(scaled(16), ours(older), version=2)
    tuned(scaled(16), ours(newer), version=3)
    db = tuned(scaled(16), Config("block_scaled_warp_specialized", BLOCK_SIZE_M=64, num_warps=4), version=1)
    code, _, err = run("export", tmp_path / "out", "--db", db, "--format", "vllm")
    (path,) = (tmp_path / "out").iterdir()
    assert (code, json.loads(path.read_text())) == (0, {"16": newer})
    assert err.startswith("1 row in the fastest config measured that their kernel can run")


def test_what_nobody_measured_in_a_way_they_can_run_is_left_out_and_said(tmp_path, run, tuned):
    tuned(scaled(16), ours(TILE, LOADS="tma"))
    db = tuned(scaled(64), ours(TILE))
    code, _, err = run("export", tmp_path / "out", "--db", db, "--format", "vllm")
    (path,) = (tmp_path / "out").iterdir()
    assert (code, list(json.loads(path.read_text()))) == (0, ["64"])
    assert err.startswith("left out: matmul 16x2112x7168 float8_e4m3fn nt")
    assert len(err.splitlines()) == 1
    assert "their kernel cannot run block_scaled 64x128x128 group 8 loads tma" in err


def test_dependent_launch_is_ours_alone_and_a_group_left_out_is_1(tmp_path, run, tuned):
    config = ours({name: value for name, value in TILE.items() if name != "GROUP_SIZE_M"}, launch_pdl=True)
    assert run("export", tmp_path / "out", "--db", tuned(scaled(16), config), "--format", "vllm")[2] == ""
    (path,) = (tmp_path / "out").iterdir()
    assert json.loads(path.read_text())["16"] == {**TILE, "GROUP_SIZE_M": 1}


@pytest.mark.parametrize(
    "parts",
    [{"scaling": "row"}, {"layout": "nn"}, {"epilogue": "bias"}, {"dtype": "float8_e5m2"}, {"b_dtype": "float8_e5m2"}],
)
def test_problems_that_are_not_theirs_are_counted_and_alone_they_are_an_error(tmp_path, run, tuned, parts):
    db = tuned(scaled(16, **parts), ours(TILE))
    code, out, err = run("export", tmp_path / "out", "--db", db, "--format", "vllm")
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert not (tmp_path / "out").exists()
    tuned(scaled(16), ours(TILE))
    assert (
        run("export", tmp_path / "out", "--db", db, "--format", "vllm")[2] == "left out: 1 winner of other problems\n"
    )


def test_of_two_output_dtypes_bfloat16_is_the_one(tmp_path, run, tuned):
    tuned(scaled(16, out_dtype="float16"), ours({**TILE, "num_warps": 8}))
    db = tuned(scaled(16), ours(TILE))
    run("export", tmp_path / "out", "--db", db, "--format", "vllm")
    (path,) = (tmp_path / "out").iterdir()
    assert json.loads(path.read_text()) == {"16": TILE}


def test_of_an_invariant_problem_and_the_plain_one_the_plain_one_ships(tmp_path, run, tuned):
    slower, faster = {**TILE, "num_warps": 8}, TILE
    for m in (16, 64, 128):
        tuned(scaled(m, invariant=True), ours(slower))
        tuned(scaled(m), ours(faster))
    for m in (16, 64, 256):
        db = tuned(scaled(m, invariant=True), ours(slower))
    assert run("export", tmp_path / "out", "--db", db, "--format", "vllm")[0] == 0
    (path,) = (tmp_path / "out").iterdir()
    assert json.loads(path.read_text()) == {"16": faster, "64": faster, "128": faster, "256": slower}


def test_a_package_of_other_formats_is_wrong_usage(tmp_path, run, tuned):
    db = tuned(scaled(16), ours(TILE))
    for kind in ("vllm", "sglang", "triton"):
        assert run("export", tmp_path / "out", "--db", db, "--format", kind, "--package", "a.b")[0] == 2


def test_a_file_where_the_folder_should_be_is_one_line(tmp_path, run, tuned):
    db = tuned(scaled(16), ours(TILE))
    (tmp_path / "out").write_text("mine")
    for kind in ("vllm", "triton"):
        code, _, err = run("export", tmp_path / "out", "--db", db, "--format", kind)
        assert (code, len(err.splitlines())) == (1, 1)
    assert (tmp_path / "out").read_text() == "mine"


def test_lists_for_autotune_hold_each_config_once_and_the_most_successful_first(tmp_path, run, tuned):
    once = Config("pointer", BLOCK_SIZE_M=64, BLOCK_SIZE_N=64, num_warps=4, num_stages=2, launch_pdl=True)
    twice = Config("pointer", BLOCK_SIZE_M=128, BLOCK_SIZE_N=64, num_warps=8, num_stages=3, launch_pdl=True)
    tuned(Problem(64, 64, 64), once)
    tuned(Problem(128, 64, 64), twice)
    tuned(Problem(256, 64, 64), twice)
    tuned(Problem(1, 64, 64), Config("gemv", BLOCK_SIZE_N=64, num_warps=4))
    db = tuned(Problem(64, 64, 64), Config("pointer", BLOCK_SIZE_M=32, num_warps=4), on=INTERPRETER)
    code, out, err = run("export", tmp_path / "out", "--db", db, "--format", "triton", "--json")
    names = [f"matmul.{kernel}.{H200.slug}.triton.json" for kernel in ("gemv", "pointer")]
    assert (code, err) == (0, "")
    assert [Path(entry["path"]).name for entry in json.loads(out)["written"]] == names
    found = json.loads((tmp_path / "out" / names[1]).read_text())
    assert found == [
        {"kwargs": {"BLOCK_SIZE_M": 128, "BLOCK_SIZE_N": 64}, "num_warps": 8, "num_stages": 3},
        {"kwargs": {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64}, "num_warps": 4, "num_stages": 2},
    ]
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    configs = [triton.Config(**entry) for entry in found]
    assert configs[0].all_kwargs() | {"num_ctas": 1} == {
        **found[0]["kwargs"],
        "num_warps": 8,
        "num_stages": 3,
        "num_ctas": 1,
    }


def test_lists_in_a_folder_of_tables_are_no_tables(tmp_path, run, tuned):
    db = tuned(Problem(64, 64, 64), Config("pointer", BLOCK_SIZE_M=64, num_warps=4))
    assert run("export", tmp_path / "out", "--db", db)[0] == 0
    assert run("export", tmp_path / "out", "--db", db, "--format", "triton")[0] == 0
    assert run("diff", db, tmp_path / "out") == (0, f"matmul on {H200.slug}: equal\n", "")


def test_a_trial_whose_run_is_damaged_is_no_config_to_ship(tmp_path, run, tuned):
    tuned(scaled(16), ours({**TILE, "num_warps": 8}), under=Environment("3.6.0", "", "", "", ""))
    with closing(sqlite3.connect(tmp_path / "tuner.db")) as connection, connection:
        connection.execute("UPDATE run SET argv = 'x'")
    db = tuned(scaled(16), ours(TILE, LOADS="tma"), ours(TILE))
    code, _, err = run("export", tmp_path / "out", "--db", db, "--format", "vllm")
    (path,) = (tmp_path / "out").iterdir()
    assert (code, json.loads(path.read_text())) == (0, {"16": TILE})
    assert "Traceback" not in err
