"""The largest sizes that a problem may have are looked up and explained as any other."""

from __future__ import annotations

import pytest

import tuner
from tuner.hardware.device import KNOWN
from tuner.problem import Problem
from tuner.problem.gemm_fields import MAX_SIZE

SHAPES = [
    *((MAX_SIZE, 1, 1), (1, MAX_SIZE, 1), (1, 1, MAX_SIZE), (MAX_SIZE, 8, 8), (8, MAX_SIZE, 8), (8, 8, MAX_SIZE)),
    *((MAX_SIZE - 15, 16, 16), (MAX_SIZE - 127, MAX_SIZE - 127, 64), (MAX_SIZE, MAX_SIZE, MAX_SIZE)),
]
KINDS = [
    {"dtype": "bf16", "layout": "nt"},
    {"dtype": "fp32", "layout": "tn"},
    {"dtype": "i8", "layout": "nn"},
    {"dtype": "e4m3", "layout": "nt", "scaling": "block"},
    {"dtype": "fp16", "b_padded": True, "epilogue": "bias+gelu"},
    {"dtype": "fp16", "op": "bmm", "extras": {"batch": MAX_SIZE}},
    {"dtype": "fp16", "op": "grouped_mm", "extras": {"groups": 4}},
]


@pytest.fixture(autouse=True)
def untuned(monkeypatch, tmp_path):
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "none.db"))
    tuner.use(None)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(map(str, kind.values())))
def test_a_problem_of_the_largest_sizes_has_a_config(kind, shape):
    for arch in ("sm_90", "sm_100"):
        problem = Problem(*shape, **kind)
        assert tuner.lookup(problem, KNOWN[arch]).rule == "default"
        assert str(problem) in tuner.explain(problem, KNOWN[arch])
