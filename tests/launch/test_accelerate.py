"""Layers that `accelerate` exchanged, through the real launch path: each call reads its own weight as it is then."""

from __future__ import annotations

import pytest


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
    # A layer without a bias and one with it: each at its first call, and where its weight is laid out anew; and a norm.
    assert checked == ["new x", "transposed weight"] * 2 + ["rows", "other rows", "eps 1e-06"]


def test_threads_share_a_model(report):
    steps, shared = report.printed["steps"], report.printed["shared"]
    launches = [addresses(launch) for launch in report.launches[len(steps) :]]
    assert len(launches) == len(shared) == 80
    for call in shared:
        assert sum({*call} <= launch for launch in launches) == 1
