"""vector_add and softmax go the whole way that matmul goes: a suite, a run, a lookup, a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SUITE = "op,m,n,k,dtype,layout\nvector_add,1000,1,1,fp32,nn\nsoftmax,20,100,1,fp16,nn\nsoftmax,16,64,1,fp32,tn\n"
LOOKUPS = """
import torch, tuner
from tuner.kernels import softmax, vector_add
for op, shape, rest in (
    ("vector_add", (1000, 1, 1), {"dtype": "fp32"}),
    ("vector_add", (1500, 1, 1), {"dtype": "fp32"}),
    ("softmax", (20, 100, 1), {"dtype": "fp16"}),
    ("softmax", (16, 64, 1), {"dtype": "fp32", "layout": "tn"}),
    ("softmax", (16, 64, 1), {"dtype": "fp32"}),
):
    print(op, tuner.lookup(tuner.Problem(*shape, op=op, **rest)).rule)
x = torch.randn(1000)
assert torch.equal(vector_add(x, x), x + x)
rows = torch.randn(64, 16).t()
torch.testing.assert_close(softmax(rows), torch.softmax(rows, -1))
"""
EXACT = ["vector_add exact", "softmax exact", "softmax exact"]
BORROWED = {"vector_add near_m", "vector_add default", "softmax near_shape", "softmax default"}
"""Which of them follows from what the interpreter measured."""


def test_problems_of_ops_that_are_no_gemm_are_tuned_looked_up_and_exported(tmp_path):
    environment = {**os.environ, "TUNER_DB": str(tmp_path / "tuner.db"), "TRITON_INTERPRET": "0"}

    def run(*command: str, expected: int = 0, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            env=environment | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expected, done.stderr
        return done.stdout

    (tmp_path / "ours.csv").write_text(SUITE)
    measured = json.loads(
        run("-m", "tuner", "run", "--suite", "ours.csv", "--device", "interpreter", "--trials", "4", "--json")
    )
    assert all(problem["winner"] for problem in measured["problems"])
    found = run("-c", LOOKUPS, TRITON_INTERPRET="1").splitlines()
    assert [found[0], *found[2:4]] == EXACT
    assert {found[1], found[4]} <= BORROWED

    run("-m", "tuner", "export", "tables", "--device", "interpreter")
    for op, count in (("vector_add", 1), ("softmax", 2)):
        table = json.loads((tmp_path / "tables" / f"{op}--interpreter.json").read_text())
        assert len(table["rows"]) == count
    from_table = {"TRITON_INTERPRET": "1", "TUNER_DB": "none.db", "TUNER_TABLES": "tables"}
    assert run("-c", LOOKUPS, **from_table).splitlines() == found

    (tmp_path / "bad.csv").write_text("op,m,n,k,dtype,layout\nvector_add,8,2,1,fp32,nn\n")
    refused = json.loads(
        run("-m", "tuner", "run", "--suite", "bad.csv", "--device", "interpreter", "--json", expected=1)
    )
    assert "Problem(M, 1, 1, op='vector_add')" in refused["problems"][0]["reason"]
