"""bmm and grouped_mm go the whole way that matmul goes: a suite, a run, a lookup, a table."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

SUITE = "op,m,n,k,dtype,layout,batch,groups,listed\nbmm,16,16,32,fp16,nn,2,,\ngrouped_mm,20,32,32,fp32,nt,,3,\n"
LOOKUPS = """
import tuner
for op, shape, rest in (
    ("bmm", (16, 16, 32), {"dtype": "fp16", "extras": {"batch": 2}}),
    ("grouped_mm", (20, 32, 32), {"dtype": "fp32", "layout": "nt", "extras": {"groups": 3}}),
    ("bmm", (16, 16, 32), {"dtype": "fp16", "extras": {"batch": 4}}),
):
    print(op, tuner.lookup(tuner.Problem(*shape, op=op, **rest)).rule)
"""


def test_problems_of_other_ops_are_tuned_looked_up_and_exported(tmp_path):
    environment = {**os.environ, "TUNER_DB": str(tmp_path / "tuner.db"), "TRITON_INTERPRET": "0"}

    def run(*command: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            env=environment | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "ours.csv").write_text(SUITE)
    measured = json.loads(
        run("-m", "tuner", "run", "--suite", "ours.csv", "--device", "interpreter", "--trials", "4", "--json")
    )
    assert all(problem["winner"] for problem in measured["problems"])
    found = run("-c", LOOKUPS, TRITON_INTERPRET="1").splitlines()
    assert found[:2] == ["bmm exact", "grouped_mm exact"]
    # Whether the neighbour is borrowed follows from what the interpreter measured.
    assert found[2:] in (["bmm default"], ["bmm near_shape"])

    run("-m", "tuner", "export", "tables", "--device", "interpreter")
    for op, extras in (("bmm", {"batch": 2}), ("grouped_mm", {"groups": 3})):
        table = json.loads((tmp_path / "tables" / f"{op}--interpreter.json").read_text())
        assert [row["extras"] for row in table["rows"]] == [extras]
    from_table = {"TRITON_INTERPRET": "1", "TUNER_DB": "none.db", "TUNER_TABLES": "tables"}
    assert run("-c", LOOKUPS, **from_table).splitlines() == found
