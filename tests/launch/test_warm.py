"""`tuner warm` compiles what tables launch: a process that serves from them afterwards compiles nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem

TMA = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "num_warps": 4, "num_stages": 3, "launch_pdl": False}
SERVED = (256, 512, 256)


def warm(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tuner", "warm", "--device", KNOWN["sm_90"].slug, "--jobs", "1", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=200
    )


@pytest.mark.long
def test_a_warning_is_told_once_and_so_is_what_was_left_out(tmp_path, make_row, make_table):
    version = registry.find("matmul", "tma").version
    config = Config("tma", **TMA, GROUP_SIZE_M=1)
    wrong = config.replace(BLOCK_SIZE_K=48)  # no kernel takes it
    rows = (make_row(*SERVED, config=config, version=version), make_row(128, 512, 256, config=wrong, version=version))
    path = make_table(*rows).write(tmp_path)
    path.write_text(path.read_text().replace('"ties": 2', '"ties": 3'))
    done = warm(str(tmp_path), TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    edited, left_out = done.stderr.splitlines()
    assert edited.startswith(f"WARNING tuner.lookup.sources: {path}: its digest is not that of its rows")
    assert left_out == "left out 1 row: parameters: BLOCK_SIZE_K is 48, no power of two"
    assert " of 1 row in " in done.stdout


@pytest.mark.long
def test_a_process_after_it_takes_every_binary_from_the_cache(make_stub, tmp_path, make_row, make_table):
    stub = make_stub()
    config = Config("tma", **TMA, GROUP_SIZE_M=1)
    path = make_table(make_row(*SERVED, config=config, version=registry.find("matmul", "tma").version)).write(tmp_path)
    cache = stub.work / "triton"
    done = warm(str(path), "--json", TRITON_CACHE_DIR=str(cache))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["rows"], told["failed"], told["cache"]) == (1, {}, str(cache))
    assert told["kernels"] >= 2, "its row, and the default of operands that are not aligned"
    report = stub.run("served.py", "table", str(path), json.dumps(SERVED))
    assert report.printed["compiled"] == 0
    assert report.printed["from_cache"] > 0
    assert report.launches[0].name == "matmul_kernel"
    before = {each: each.stat().st_mtime_ns for each in cache.rglob("*.cubin")}
    again = warm(str(path), TRITON_CACHE_DIR=str(cache))
    assert again.returncode == 0
    assert again.stdout.startswith(f"{KNOWN['sm_90'].slug}: {told['kernels']} kernels of 1 row in {cache}, ")
    assert {each: each.stat().st_mtime_ns for each in cache.rglob("*.cubin")} == before


MODULE = """
import triton, triton.language as tl
import tuner

@tuner.tuned([triton.Config({"BLOCK": 128})], ["N"])
@triton.jit
def doubled(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    pass

@doubled.make_inputs
def inputs(problem):
    raise ValueError("no such size")
"""


@pytest.mark.long
def test_what_is_not_compiled_is_no_kernel_that_is_in_the_cache(tmp_path, make_row, make_table):
    (tmp_path / "mine.py").write_text(MODULE)
    problem, config = Problem.keyed("doubled", {"N": 64}, dtype="float32"), Config("doubled", BLOCK=128, num_warps=4)
    row = dataclasses.replace(make_row(), problem=problem, config=config.replace(num_stages=3))
    path = make_table(row, op="doubled").write(tmp_path)
    where = {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = warm(str(path), "--kernel", f"{tmp_path / 'mine.py'}:doubled", "--json", **where)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert (told["rows"], told["kernels"], len(told["failed"])) == (1, 0, 1)
