"""`tuner inspect` compiles without a GPU, says what a binary takes, and has one clear line for what does not fit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("triton")

import tuner
from tuner.cli import cli
from tuner.errors import KernelError, TunerError
from tuner.hardware.device import KNOWN
from tuner.inspection.binary import compile_binary
from tuner.inspection.request import choose
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernels.gemm.hopper import cluster_k_space, cluster_sizes
from tuner.problem import Problem

FAULTY = Path(__file__).parents[1] / "sweep" / "faulty"
VECTOR = ("--problem", "M=100000,N=1,K=1,dtype=fp32", "--target", "cuda:90")
GEMM = ("--problem", "M=256,N=256,K=256,dtype=bf16,layout=nt")


@pytest.fixture(autouse=True)
def nobody_tuned(no_tables):
    """Configs come from the formulas."""


@pytest.fixture
def inspect(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))

    def inspect(*arguments: str):
        return CliRunner().invoke(cli, ["inspect", *arguments])

    return inspect


def test_figures_of_the_config_that_a_lookup_gives(inspect):
    done = inspect("vector_add/add_block", *VECTOR, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    (binary,) = found["binaries"]
    assert (binary["rule"], binary["arch"], found["target"]) == ("default", "sm_90", "cuda:90")
    assert binary["stages"][:4] == ["ttir", "ttgir", "llir", "ptx"]
    assert (binary["num_warps"], binary["num_ctas"], binary["shared_bytes"]) == (binary["config"]["num_warps"], 1, 0)
    assert 8 <= binary["registers"] <= 64
    assert binary["spill_bytes"] == 0
    seen = binary["occupancy"]
    assert seen["blocks"] == min(seen["by_registers"], seen["by_shared"], seen["by_warps"]) > 0


@pytest.mark.skipif(cluster_sizes.untried() is not None, reason="the running Triton makes no clusters")
def test_memory_that_a_kernel_reserves_for_itself_counts_as_shared(inspect):
    few = ("--problem", "M=32,N=1280,K=8192,dtype=bf16,layout=nt", "--target", "cuda:90")
    done = inspect("cluster_k", *few, "--json")
    assert done.exit_code == 0, done.output
    (binary,) = json.loads(done.stdout)["binaries"]
    config, problem = Config("cluster_k", **binary["config"]), Problem(32, 1280, 8192, dtype="bf16", layout="nt")
    assert binary["shared_bytes"] == cluster_k_space.shared_bytes(config, problem, KNOWN["sm_90"])
    assert binary["occupancy"]["by_shared"] == 233_472 // (binary["shared_bytes"] + 1024)


def test_an_option_is_given_as_any_parameter_and_refused_where_the_kernel_has_none(inspect):
    rows = ("--problem", "M=4096,N=32768,K=1,dtype=bf16", "--target", "cuda:90")
    packed = "RECOMPUTED=true,maxnreg=64,num_warps=16"
    done = inspect("softmax_whole", *rows, "--config", packed, "--json")
    assert done.exit_code == 0, done.output
    (binary,) = json.loads(done.stdout)["binaries"]
    assert binary["config"]["RECOMPUTED"] is True
    assert binary["occupancy"]["blocks"] == 2, "what x is packed for"
    done = inspect("vector_add/add_block", *VECTOR, "--config", "num_ctas=2")
    assert done.exit_code == 1
    assert "unknown parameter 'num_ctas': known are" in str(done.exception)
    assert "BLOCK_SIZE" in str(done.exception)


def test_a_tuned_config_is_shown_with_the_rule_that_found_it(inspect, make_row, make_table, tmp_path):
    spec = registry.find("matmul", "pointer")
    tile = dict.fromkeys(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), 64)
    config = Config("pointer", **tile, GROUP_SIZE_M=1, launch_pdl=True, num_stages=3, num_warps=4)
    row = make_row(256, 256, 256, config=config, version=spec.version, dtype="bf16", layout="nt")
    tuner.use(make_table(row).write(tmp_path))
    done = inspect("pointer", "--problem", "M=256,N=256,K=256,dtype=bf16,layout=nt", "--target", "cuda:90", "--json")
    assert done.exit_code == 0, done.output
    (binary,) = json.loads(done.stdout)["binaries"]
    assert (binary["rule"], binary["config"]["BLOCK_SIZE_M"], binary["shared_bytes"]) == (
        "exact",
        64,
        3 * 2 * 64 * 64 * 2,
    )
    known = Problem(256, 256, 256, dtype="bf16", layout="nt")
    other = choose(registry.find("matmul", "split_k"), known, KNOWN["sm_90"])
    assert other.remark.startswith("a lookup gives another kernel's config (exact): pointer(")


def test_a_form_alone_is_on_stdout_and_the_figures_beside_it(inspect):
    done = inspect("add_block", "--problem", "M=4096,N=1,K=1", "--target", "hip:gfx942", "--stage", "amdgcn")
    assert done.exit_code == 0, done.output
    assert "amdgcn-amd-amdhsa--gfx942" in done.stdout.splitlines()[0]
    assert "occupancy" in done.stderr
    assert "8 waves a SIMD" in done.stderr


@pytest.mark.parametrize(("typed", "target"), [("sm_80", "cuda:80"), ("gfx942", "hip:gfx942")])
def test_a_target_may_be_named_by_its_architecture(inspect, typed, target):
    done = inspect("add_block", *VECTOR[:2], "--target", typed, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["target"] == target


def test_every_form_is_saved_on_request(inspect, tmp_path):
    done = inspect("add_block", *VECTOR, "--config", "BLOCK_SIZE=256 num_warps=2", "--out", str(tmp_path / "forms"))
    assert done.exit_code == 0, done.output
    saved = {path.suffix: path for path in (tmp_path / "forms").iterdir()}
    assert {".ttir", ".ttgir", ".llir", ".ptx", ".json"} <= saved.keys()
    assert ".target sm_90a" in saved[".ptx"].read_text()
    facts = json.loads(saved[".json"].read_text())
    assert (facts["config"]["BLOCK_SIZE"], facts["num_warps"]) == (256, 2)
    assert str(saved[".ttir"]) in done.stderr


@pytest.mark.long
def test_two_configs_side_by_side_and_what_differs(inspect):
    configs = (
        "num_warps=2,BLOCK_SIZE=256",
        '{"BLOCK_SIZE":512,"PROGRAMS_PER_SM":0,"launch_pdl":true,"num_stages":3,"num_warps":4}',
    )
    done = inspect("add_block", *VECTOR, "--diff", *configs, "--stage", "ttgir")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert next(line for line in lines if line.startswith("BLOCK_SIZE")).split() == ["BLOCK_SIZE", "256", "512"]
    assert any(line.startswith("-") and '"ttg.num-warps" = 2' in line for line in lines)
    assert any(line.startswith("+") and '"ttg.num-warps" = 4' in line for line in lines)
    same = inspect("add_block", *VECTOR, "--diff", "num_warps=4", "num_warps=4", "--stage", "ptx")
    assert "ptx: no difference" in same.stdout


def test_a_config_that_a_search_would_not_try_is_compiled_with_a_note(inspect):
    done = inspect("add_block", *VECTOR, "--config", "BLOCK_SIZE=32,num_warps=4", "--stage", "ttir")
    assert done.exit_code == 0, done.output
    assert "a search would not try it: idle threads: 32 elements for 128 threads" in done.stderr


ADD = ("add_block", *VECTOR)
SHORT = '{"BLOCK_SIZE":256,"PROGRAMS_PER_SM":0,"launch_pdl":true,"num_stages":3}'
LARGE = "num_stages=12,BLOCK_SIZE_M=256,BLOCK_SIZE_N=256"
MISTAKES = {
    "unknown kernel 'add_blok': known are": ("add_blok", *VECTOR),
    "bmm is an op: name one of its kernels, bmm_pointer, bmm_": ("bmm", "--problem", "M=1,N=1,K=1,batch=1"),
    "unknown name 'Q': known are m, n, k": ("add_block", "--problem", "M=1,Q=2"),
    "missing N, K: expected for instance": ("pointer", "--problem", "M=1"),
    "m is there twice": ("add_block", "--problem", "M=1,m=2,N=1,K=1"),
    "not a problem: 'M': expected NAME=VALUE pairs": ("add_block", "--problem", "M"),
    "M must be an integer, got 'few'": ("add_block", "--problem", "M=few,N=1,K=1"),
    "unknown dtype 'fp12'": ("pointer", "--problem", "M=1,N=1,K=1,dtype=fp12"),
    "unknown target 'cuda:77': known are cuda:80": ("add_block", *VECTOR[:2], "--target", "cuda:77"),
    "'nvidia' is the name of several devices": ("add_block", *VECTOR[:2], "--target", "nvidia"),
    "--target is empty: expected a name, or leave it out": ("add_block", *VECTOR[:2], "--target", ""),
    "unknown target 'hip:sm_90'": ("add_block", *VECTOR[:2], "--target", "hip:sm_90"),
    "no stage amdgcn for cuda:90: expected ttir": (*ADD, "--stage", "amdgcn"),
    "unknown parameter 'BLOCK_SIZE_Q': known are BLOCK_SIZE, ": (*ADD, "--config", "BLOCK_SIZE_Q=4"),
    'parameters are not JSON: \'{"BLOCK_SIZE":\': expected for instance {"num_warps": 4}': (
        *ADD,
        "--config",
        '{"BLOCK_SIZE":',
    ),
    "cannot run on cuda:90: parameters: num_warps is missing": (*ADD, "--config", SHORT),
    "cannot run on cuda:90: parameters: BLOCK_SIZE is 100, no power": (*ADD, "--config", "BLOCK_SIZE=100"),
    "cannot run on cuda:90: parameters: num_warps is 'few': expected an integer": (*ADD, "--config", "num_warps=few"),
    "parameters: launch_pdl is 5: expected true or false": (*ADD, "--config", "launch_pdl=5"),
    "cannot run on cuda:80: shared memory: ": ("pointer", *GEMM, "--target", "cuda:80", "--config", LARGE),
    "num_warps is there twice": (*ADD, "--config", "num_warps=4,num_warps=8"),
    "a config is empty": (*ADD, "--config", ""),
    "--config and --diff exclude each other": (*ADD, "--config", "num_warps=4", "--diff", "num_warps=4", "num_warps=8"),
}


def test_a_mistake_is_the_only_line(run):
    code, out, err = run("inspect", "add_block", "--problem", "?" * 5000)
    assert (code, out) == (2, "")
    assert err.startswith("tuner: not a problem: '???")
    assert err.endswith("?: expected NAME=VALUE pairs, for instance M=4096,N=1024\n")
    assert len(err) < 200


@pytest.mark.parametrize("message", list(MISTAKES))
def test_what_cannot_be_meant_is_one_clear_line(message, inspect):
    done = inspect(*MISTAKES[message])
    assert isinstance(done.exception, TunerError), done.output
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)


def test_a_problem_that_the_kernel_does_not_serve_is_told_with_its_reason(inspect):
    done = inspect("tma", *GEMM, "--target", "cuda:80")
    assert isinstance(done.exception, KernelError)
    assert "matmul/tma does not serve matmul 256x256x256 bfloat16 nt on cuda:80: " in str(done.exception)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("raise", "ValueError: cannot lower this"),
        ("segfault", "compiler died with signal SIGABRT: LLVM ERROR: unreachable executed"),
        ("hang", "compile took more than 2 s"),
    ],
)
def test_a_compiler_that_fails_aborts_or_hangs_is_one_clear_line(behaviour, message, monkeypatch, capfd):
    monkeypatch.syspath_prepend(FAULTY)
    registry.forget()
    try:
        problem = Problem(16, 16, 16, dtype="float32", op="faulty")
        with pytest.raises(KernelError) as raised:
            compile_binary(problem, Config("faulty", behaviour=behaviour, index=0), KNOWN["sm_90"], time_limit_s=2)
    finally:
        registry.forget()
        sys.modules.pop("faulty_kernels", None)
    assert str(raised.value).endswith(f"for sm_90: {message}")
    assert capfd.readouterr().out == ""


def test_a_cache_that_cannot_be_written_is_told_with_the_variable_that_names_it(inspect, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    said = str(inspect("add_block", *VECTOR).exception)
    assert "for sm_90: Triton's cache cannot be written (NotADirectoryError: " in said
    assert "set $TRITON_CACHE_DIR to another folder" in said


def test_a_compiler_that_may_not_be_run_is_not_told_as_a_cache(inspect, tmp_path, monkeypatch):
    ptxas = tmp_path / "ptxas"
    ptxas.touch(mode=0o644)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(ptxas))
    said = str(inspect("add_block", *VECTOR).exception)
    assert f"nothing can be compiled (PermissionError: [Errno 13] Permission denied: '{ptxas}')" in said
    assert "allow this user to use that file" in said


def test_an_interpreting_process_compiles_all_the_same(inspect, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = inspect("add_block", *VECTOR)
    assert done.exit_code == 0, done.output
    assert os.environ["TRITON_INTERPRET"] == "1"
