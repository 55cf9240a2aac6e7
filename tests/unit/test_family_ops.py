"""Every op, scale, dtype and epilogue: a new M of a tuned family is served, and a miss names a range that holds it."""

from __future__ import annotations

import shlex

import pytest

import tuner
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel import registry
from tuner.lookup import advice, table
from tuner.lookup.lookup import resolver
from tuner.lookup.row import Provenance, Row
from tuner.problem import Problem, generic_key, suite, text
from tuner.problem.family import Family, Ladder, Range

pytest.importorskip("triton")
H200 = KNOWN["sm_90"]
MADE = Provenance(Environment("3.7.1", "2.13.0", "cuda 13.0", "", "3.11"), 1, "0.1.0")
NT = {"layout": "nt", "dtype": "bfloat16"}
E4M3 = {"layout": "nt", "dtype": "float8_e4m3fn"}
KINDS = {
    "rows by groups": {**NT, "op": "grouped_mm", "extras": {"groups": 5}},
    "lists": {**NT, "op": "grouped_mm", "extras": {"groups": 4, "listed": True}},
    "experts": {**NT, "op": "fused_experts", "epilogue": "silu", "extras": {"groups": 16, "top_k": 4}},
    "gated layers": {**NT, "op": "gated_linear", "epilogue": "silu"},
    "batches": {**NT, "op": "bmm", "extras": {"batch": 8}},
    "batches with a bias": {**NT, "op": "bmm", "epilogue": "bias", "extras": {"batch": 8}},
    "bias and activation": {**NT, "epilogue": "bias+silu"},
    "fp8": E4M3,
    "fp8 of two kinds": {"layout": "nt", "a_dtype": "float8_e5m2", "b_dtype": "float8_e4m3fn"},
    "sums by the tensor cores": {**E4M3, "fast_accum": True, "out_dtype": "float32"},
    "one scale": {**E4M3, "scaling": "scalar"},
    "row scales": {**E4M3, "scaling": "row"},
    "block scales": {**E4M3, "scaling": "block"},
    "int8": {"layout": "nt", "dtype": "int8", "scaling": "row"},
    "a padded weight": {**NT, "k": 4099, "b_padded": True},
    "tf32": {"dtype": "float32", "precision": "tf32"},
    "rows of softmax": {"dtype": "bfloat16", "op": "softmax", "k": 1},
    "norms": {"dtype": "bfloat16", "op": "rms_norm", "k": 1, "extras": {"eps": 1e-6}},
}

pytestmark = pytest.mark.usefixtures("no_tables")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_new_m_of_a_tuned_family_is_served_and_one_beyond_is_a_miss_that_names_the_range(kind, tmp_path):
    def at(m: int) -> Problem:
        return Problem(m, 4096, **{"k": 4096, **kind})

    config = registry.default_config(at(16), H200)
    version = registry.find(at(16).op, config.kernel).version
    tuned = Family(at(1).group(), (Range(1, 16, 16, "measured"),))
    row = Row(at(16), config, version, MADE, 10.0, 1.1, 1.0, 1)
    tuner.use(table.Table(at(1).op, H200, "2026-01-31T12:00:00Z", (row,), (tuned,)).write(tmp_path))
    found = resolver().decide(at(9), H200)
    assert (found.match.rule, found.match.config, found.fallen) == ("family", config, ())
    beyond = resolver().decide(at(17), H200)
    assert beyond.match.rule == "default"
    typed = shlex.split(advice.command(at(17), beyond.untuned))
    if at(1).op == "softmax":
        assert text.read("softmax", generic_key.cells(typed[-1])) == at(17)
    elif "--problem" in typed:
        ladders = text.read_all(at(1).op, generic_key.cells(typed[-1]))
        assert {(ladder.first_m, ladder.last_m) for ladder in ladders} == {(17, 512)}
        assert at(1).group() in [ladder.family for ladder in ladders]
    else:
        assert typed[3].startswith("17-512x")


def test_a_miss_of_merged_layers_names_the_rows_that_their_kernel_takes():
    problem = Problem(1, 6144, 4096, **NT, op="merged_linear", extras={"parts": "4096+1024+1024"})
    beyond = resolver().decide(problem, H200)
    assert beyond.match.config == registry.find("merged_linear", "merged_gemv").default_config(problem, H200)
    typed = shlex.split(advice.command(problem, beyond.untuned))
    (ladder,) = text.read_all("merged_linear", generic_key.cells(typed[-1]))
    assert (ladder.first_m, ladder.last_m, ladder.family) == (1, 2, problem.group())


def test_a_suite_takes_a_range_of_rows_for_every_op(tmp_path):
    path = tmp_path / "suite.csv"
    rows = ("grouped_mm,nt,,,5,", "bmm,nt,,8,,", ",nt,bias+gelu,,,", "softmax,nn,,,,", "fused_experts,nt,silu,,5,2")
    rows += ("gated_linear,nt,silu,,,",)
    lines = [f"{row},,{'1' if row.startswith('softmax') else '64'}" for row in rows] + ["rms_norm,nn,,,,,1e-6,1"]
    path.write_text(
        "op,layout,epilogue,batch,groups,top_k,eps,k,m,n,dtype,parts\n"
        + "".join(f"{line},1-64,64,bf16,\n" for line in lines)
        + "merged_linear,nt,bias,,,,,64,1-2,64,bf16,32+16+16\n"
    )
    found = suite.load_with_ladders(path)
    *others, merged = [(type(each), each.first_m, each.last_m) for each in found]
    assert others == 7 * [(Ladder, 1, 64)]
    assert merged == (Ladder, 1, 2)
