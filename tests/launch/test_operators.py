"""Operators, through the real launch path: a known call runs its plan, and torch's dispatcher sees what it must see."""

from __future__ import annotations

import pytest

OPERATORS = {
    **dict.fromkeys(("linear", "linear with a bias"), "linear"),
    **dict.fromkeys(("gated", "gated, joined"), "gated_by_evidence"),
    "gated_linear": "gated_linear",
    **dict.fromkeys(("matmul", "matmul with a bias", "matmul, every option"), "matmul"),
}
"""Operators by kinds of calls."""


@pytest.fixture(scope="module")
def printed(stub):
    return stub.run("operators.py").printed


@pytest.mark.parametrize("kind", OPERATORS)
def test_a_known_call_runs_its_plan_before_torch_dispatches(printed, kind):
    """Called twice with the same x, with another of its kind, and with another number of rows."""
    assert printed["calls"][kind]["long"] == [True, False, False, True]


def test_a_compiled_programs_known_calls_run_plans(stub):
    """Three calls without gradients, and three in inference mode, where tensors are of another kind to torch.

    The first call of each runs while torch compiles, where its state is another, so the second is not known yet.
    """
    report = stub.run("compiled_operator.py")
    without_gradients, inference = report.printed["seen"][:3], report.printed["seen"][3:]
    assert without_gradients[0] > 0
    assert inference[0] > 0
    assert without_gradients[2] == inference[2] == 0
    assert len(report.launches) == 6


@pytest.mark.parametrize("kind", OPERATORS)
def test_without_gradients_a_call_is_known_too(printed, kind):
    """But for `matmul`, whose operator has a gradient of its own."""
    assert printed["calls"][kind]["without gradients"] == [True, OPERATORS[kind] == "matmul"]


@pytest.mark.parametrize("mode", ["Seeing", "Overlooked", "Overriding", "make_fx"])
@pytest.mark.parametrize("kind", OPERATORS)
def test_a_mode_of_torch_sees_the_operator_although_the_call_is_known(printed, kind, mode):
    assert f"triton_tuner::{OPERATORS[kind]}" in printed["calls"][kind]["seen"][mode]
    assert printed["calls"][kind]["known after all"]


@pytest.mark.parametrize("kind", ["matmul", "gated_linear"])
def test_make_fx_records_an_operator_of_a_known_eager_call(printed, kind):
    assert f"triton_tuner::{kind}" in printed["calls"]["eager"][kind]


@pytest.mark.parametrize("kind", OPERATORS)
def test_under_autocast_torch_dispatches(printed, kind):
    assert printed["calls"][kind]["autocast"]


def test_what_asks_for_a_gradient_gets_one_although_the_call_is_known(printed):
    assert printed["calls"]["asking"] == [True, False]
    assert printed["calls"]["gradient"]


def test_arguments_by_name_go_through_torch(printed):
    assert not printed["calls"]["by position"]
    assert printed["calls"]["by name"]


def test_torch_words_what_is_wrong_with_arguments(printed):
    missing, more, kind = printed["errors"]
    assert "missing value for argument 'bias'" in missing
    assert "expected at most 4" in more
    assert "weight" in kind
