"""Layers that `accelerate` patched, through the real launch path: each call reads its own weight as it is then."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.problem import Problem


@pytest.fixture(scope="module")
def report(stub):
    return stub.run("accelerated.py")


def addresses(launch):
    """Every number of a launch's arguments; a pointer or the address that a descriptor is of is among them."""
    return {launch.address(index) for index in range(len(launch.params)) if len(launch.params[index]) >= 8}


def test_every_call_reads_the_weight_and_the_bias_that_the_layer_has_then(report):
    steps = report.printed["steps"]
    for launch, step in zip(report.launches, steps, strict=False):
        assert {*step["reads"], step["writes"]} <= addresses(launch), step["kind"]


def test_repeated_calls_run_a_plan_although_the_weight_may_ask_for_a_gradient(report):
    steps = report.printed["steps"]
    before = [0, *(step["checked"] for step in steps)]
    checked = [step["kind"] for step, count in zip(steps, before, strict=False) if step["checked"] > count]
    # A layer without a bias and one with it: each at its first call, and where its weight is laid out anew; and norms.
    assert checked == ["new x", "transposed weight"] * 2 + ["rows", "other rows", "eps 1e-06", "offset"]


def test_threads_share_a_model(report):
    steps, shared = report.printed["steps"], report.printed["shared"]
    launches = [addresses(launch) for launch in report.launches[len(steps) :]]
    assert len(launches) == len(shared) == 80
    for call in shared:
        assert sum({*call} <= launch for launch in launches) == 1


def assert_each_step_reads_its_weights(report, launches_of_a_step):
    steps = report.printed["steps"]
    assert len(report.launches) == launches_of_a_step * len(steps)
    for launch, step in zip(report.launches[::launches_of_a_step], steps, strict=True):
        assert {*step["reads"]} <= addresses(launch), step["kind"]


def checked_of(report):
    """The steps that took the long way."""
    steps = report.printed["steps"]
    before = [0, *(step["checked"] for step in steps)]
    return [step["kind"] for step, count in zip(steps, before, strict=False) if step["checked"] > count]


def test_a_gated_mlp_is_two_launches_and_repeats_by_a_plan(stub):
    report = stub.run("accelerated_mlps.py", json.dumps(["tuner", 8, 8, 8]))
    assert len(report.printed["mlps"]) == 2
    assert len(report.printed["exchanged"]) == 5
    assert_each_step_reads_its_weights(report, 2)
    assert checked_of(report) == ["new x of 8", "one of rows"] * 2


def test_attention_of_few_rows_is_one_launch_and_repeats_by_a_plan(stub):
    report = stub.run("accelerated_attention.py")
    steps = report.printed["steps"]
    *merged, apart = steps
    assert len(report.printed["attentions"]) == 2
    assert report.printed["merged"] == len(merged) == len(report.launches) - 3
    for launch, step in zip(report.launches, merged, strict=False):
        assert {*step["reads"], step["writes"][0]} <= addresses(launch), step["kind"]
    for launch, reads in zip(report.launches[-3:], apart["reads"][1:], strict=True):
        assert {apart["reads"][0], reads} <= addresses(launch)
    for step in merged:
        lead = {"2": [1, 2], "1": [1, 1], "t": [2, 1]}.get(step["kind"][0], [2, 1])
        assert step["shapes"] == [[*lead, n, True] for n in (128, 64, 64)], step["kind"]
        first, second, third = step["writes"]
        rows = lead[0] * lead[1]
        assert (second - first, third - second) == (2 * rows * 128, 2 * rows * 64), step["kind"]
    assert checked_of(report) == ["1 rows", "2 rows", "two of one"] * 2


@pytest.mark.parametrize("backend", ["auto", "tuner"])
def test_an_m_of_a_range_is_served_by_the_plan_of_another(backend, make_stub, make_rows, make_family, tmp_path):
    problem = Problem(128, 128, 64, layout="nt", op="gated_linear", epilogue="silu")
    config = registry.find("gated_linear", "gated_pointer").default_config(problem, KNOWN["sm_90"])
    made = make_rows({problem: config})
    rows = tuple(replace(row, vs_vendor=1.1) for row in made.rows)
    path = replace(made, rows=rows, families=(make_family(128, first=65, problem=problem),)).write(tmp_path)
    assert make_stub().run("ship.py", str(path)).printed["failed"] == [[]]
    report = make_stub().run("accelerated_mlps.py", json.dumps([backend, 100, 65, 128, 77]), str(path))
    assert len(report.printed["mlps"]) == 2
    assert_each_step_reads_its_weights(report, 1 if backend == "auto" else 2)
    assert checked_of(report) == ["new x of 100"] * 2  # halves of one weight are of another class than parameters
