"""Ops other than matmul go the whole way that it goes: a suite, a run, a lookup, a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("triton")

SUITE = """op,m,n,k,dtype,layout,batch,groups,top_k,epilogue,eps
bmm,16,16,32,fp16,nn,2,,,,
grouped_mm,20,32,32,fp32,nt,,3,,,
fused_experts,9,32,32,fp32,nt,,4,2,silu,
fused_experts,9,32,32,fp32,nt,,4,5,silu,
gated_linear,9,32,40,fp32,nt,,,,silu,
gated_linear,3,32,40,bf16,nn,,,,silu,
vector_add,1000,1,1,fp32,nn,,,,,
vector_add,8,2,1,fp32,nn,,,,,
softmax,20,100,1,fp16,nn,,,,,
softmax,16,64,1,fp32,tn,,,,,
rms_norm,6,64,1,fp32,nn,,,,,0.000001
rms_norm,6,64,1,fp32,nn,,,,,1e-5
"""
LOOKUPS = """
import torch, tuner
from tuner.kernels import fused_experts, gated_linear, rms_norm, softmax, vector_add
for op, shape, rest in (
    ("bmm", (16, 16, 32), {"dtype": "fp16", "extras": {"batch": 2}}),
    ("grouped_mm", (20, 32, 32), {"dtype": "fp32", "layout": "nt", "extras": {"groups": 3}}),
    ("fused_experts", (9, 32, 32),
     {"dtype": "fp32", "layout": "nt", "epilogue": "silu", "extras": {"groups": 4, "top_k": 2}}),
    ("gated_linear", (9, 32, 40), {"dtype": "fp32", "layout": "nt", "epilogue": "silu"}),
    ("vector_add", (1000, 1, 1), {"dtype": "fp32"}),
    ("softmax", (20, 100, 1), {"dtype": "fp16"}),
    ("softmax", (16, 64, 1), {"dtype": "fp32", "layout": "tn"}),
    ("rms_norm", (6, 64, 1), {"dtype": "fp32", "extras": {"eps": 1e-06}}),
    ("rms_norm", (6, 64, 1), {"dtype": "fp32", "extras": {"eps": 1e-05}}),
    ("bmm", (16, 16, 32), {"dtype": "fp16", "extras": {"batch": 4}}),
    ("fused_experts", (9, 32, 32), {"dtype": "fp32", "layout": "nt", "extras": {"groups": 4, "top_k": 2}}),
    ("gated_linear", (9, 32, 40), {"dtype": "fp32", "layout": "nt"}),
    ("vector_add", (1500, 1, 1), {"dtype": "fp32"}),
    ("softmax", (16, 64, 1), {"dtype": "fp32"}),
    ("rms_norm", (6, 64, 1), {"dtype": "fp32", "extras": {"eps": 2e-06}}),
):
    print(op, tuner.lookup(tuner.Problem(*shape, op=op, **rest)).rule)
x = torch.randn(1000)
assert torch.equal(vector_add(x, x), x + x)
x, weights = torch.randn(9, 32), (torch.randn(4, 64, 32), torch.randn(4, 32, 32))
gate, up = (x @ weights[0][1].t()).chunk(2, dim=-1)
moe = fused_experts(x, *weights, torch.full((9, 2), 1), torch.full((9, 2), 0.5))
torch.testing.assert_close(moe, (torch.nn.functional.silu(gate) * up) @ weights[1][1].t(), rtol=1e-4, atol=1e-3)
x, gate, up = torch.randn(3, 3, 40), *torch.randn(2, 32, 40)
gated = torch.nn.functional.silu(x @ gate.t()) * (x @ up.t())
torch.testing.assert_close(gated_linear(x, gate, up), gated, rtol=1e-4, atol=1e-3)
rows = torch.randn(64, 16).t()
torch.testing.assert_close(softmax(rows), torch.softmax(rows, -1))
x, weight = torch.randn(2, 3, 64), torch.randn(64)
torch.testing.assert_close(rms_norm(x, weight, 1e-6), torch.nn.functional.rms_norm(x, (64,), weight, 1e-6))
"""
EXACT = [
    *("bmm exact", "grouped_mm exact", "fused_experts exact", "gated_linear exact", "vector_add exact"),
    *("softmax exact", "softmax exact", "rms_norm exact", "rms_norm exact"),
]
UNTUNED = [
    *("bmm default", "fused_experts default", "gated_linear default", "vector_add default", "softmax default"),
    "rms_norm default",
]
TABLES = {
    "bmm": [{"batch": 2}],
    "grouped_mm": [{"groups": 3}],
    "fused_experts": [{"groups": 4, "top_k": 2}],
    "gated_linear": [{}],
    "vector_add": [{}],
    "softmax": [{}, {}],
    "rms_norm": [{"eps": 1e-05}, {"eps": 1e-06}],
}


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., str]:
    """Run Python with a database of this test's own; returns stdout."""

    def python(*command: str, expected: int = 0, **variables: str) -> str:
        environment = {**os.environ, "TUNER_DB": str(tmp_path / "tuner.db"), "TRITON_INTERPRET": "0"} | variables
        done = subprocess.run(
            [sys.executable, *command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == expected, done.stderr
        return done.stdout

    return python


@pytest.mark.long
def test_problems_of_other_ops_are_tuned_looked_up_and_exported(python, run, no_tables, tmp_path):
    (tmp_path / "ours.csv").write_text(SUITE)
    options = ("--suite", "ours.csv", "--device", "interpreter", "--trials", "4", "--json")
    measured = json.loads(python("-m", "tuner", "run", *options, expected=1))
    refused = [problem for problem in measured["problems"] if not problem["winner"]]
    assert [problem["problem"]["op"] for problem in refused] == ["fused_experts", "gated_linear", "vector_add"]
    reasons = "top_k is 5 of 4 experts", "no layout nn: expected nt", "Problem(M, 1, 1, op='vector_add')"
    for problem, words in zip(refused, reasons, strict=True):
        assert words in problem["reason"]
    assert python("-c", LOOKUPS, TRITON_INTERPRET="1").splitlines()[: len(EXACT)] == EXACT

    assert run("export", tmp_path / "tables", "--device", "interpreter", "--db", tmp_path / "tuner.db")[0] == 0
    for op, extras in TABLES.items():
        path = tmp_path / "tables" / f"{op}--interpreter.json"
        assert [row.get("extras", {}) for row in json.loads(path.read_text())["rows"]] == extras
    from_table = {"TRITON_INTERPRET": "1", "TUNER_DB": "none.db", "TUNER_TABLES": "tables"}
    assert python("-c", LOOKUPS, **from_table).splitlines() == [*EXACT, *UNTUNED]

    # The same problems as one types them.
    for op, typed in (
        ("bmm", "M=16,N=16,K=32,batch=2"),
        ("grouped_mm", "M=20,N=32,K=32,dtype=fp32,layout=nt,groups=3"),
        ("fused_experts", "M=9,N=32,K=32,dtype=fp32,layout=nt,groups=4,top_k=2,epilogue=silu"),
        ("gated_linear", "M=9,N=32,K=40,dtype=fp32,layout=nt,epilogue=silu"),
        ("softmax", "M=20,N=100"),
        ("rms_norm", "M=6,N=64,dtype=fp32,eps=1e-6"),
        ("rms_norm", "M=6,N=64,dtype=fp32,eps=0.00001"),
    ):
        where = ("--device", "interpreter", "--db", tmp_path / "tables")
        code, out, _ = run("lookup", "--kernel", op, "--problem", typed, *where)
        assert (code, "rule exact" in out) == (0, True)
    code, out, _ = run("show", "winners", "--problem", "M=20,N=100,dtype=fp16", "--db", tmp_path / "tuner.db", "--json")
    assert [winner["problem"]["op"] for winner in json.loads(out)] == ["softmax"]
    code, out, _ = run("show", "trials", "--problem", "M=16,N=64", "--db", tmp_path / "tuner.db", "--json")
    assert {trial["problem"]["op"] for trial in json.loads(out)} == {"softmax"}
    code, out, _ = run("show", "winners", "--problem", "eps=1e-6", "--db", tmp_path / "tuner.db", "--json")
    assert [winner["problem"]["extras"] for winner in json.loads(out)] == [{"eps": 1e-06}]
    again = ("run", "--kernel", "vector_add", "--problem", "M=1000,dtype=fp32", "--strategy", "exhaustive", "--dry-run")
    code, out, _ = run(*again, "--device", "interpreter", "--db", tmp_path / "tuner.db", "--json")
    assert (code, [forecast["known"] for forecast in json.loads(out)]) == (0, [2])  # all of the interpreter's space
