"""What other addresses alone do not repeat is launched by its kernel. That what is repeated is right takes a GPU."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")
from tuner.kernel import registry
from tuner.launch.plan import Recording, recorded
from tuner.problem import Problem
from tuner.sweep import buffer_sets

PROBLEM = Problem(16, 32, 64, dtype="float16", epilogue="bias")


@pytest.fixture
def sets():
    spec = registry.find("matmul", "pointer")
    return [spec.make_inputs(PROBLEM, "cpu", seed) for seed in range(3)]


@pytest.fixture
def planned(monkeypatch):
    """Stands for the plan of what was recorded, and notes what it is given."""
    told = []
    plan = SimpleNamespace(launcher=lambda: lambda *given: told.append(given), stream_of=lambda device: 7, index=0)
    monkeypatch.setattr(buffer_sets, "recorded_launches", lambda seen, addresses: addresses)
    monkeypatch.setattr(buffer_sets, "make_plan", lambda seen, launches, index: plan)
    return told


def test_a_call_is_repeated_on_each_sets_own_addresses(sets, planned):
    call = buffer_sets.launches_again(Recording(), sets[0], sets[1:])
    for index in (1, 0):
        call(index)
    tensors = [(each.a, each.b, each.out, each.bias) for each in (sets[2], sets[1])]
    assert planned == [(7, *(tensor.data_ptr() for tensor in given)) for given in tensors]


def test_sets_that_are_aligned_otherwise_take_the_kernels_own_path(sets, planned):
    a = sets[2].a
    moved = dataclasses.replace(sets[2], a=a.new_empty(a.numel() + 1)[1:].view_as(a))
    assert buffer_sets.launches_again(Recording(), sets[0], [sets[1], moved]) is None


def test_what_recorded_no_launch_takes_the_kernels_own_path(sets):
    with recorded() as seen:
        registry.find("matmul", "pointer").vendor(sets[0])
    assert buffer_sets.launches_again(seen, sets[0], sets[1:]) is None


def test_operands_of_a_users_own_kind_take_the_kernels_own_path(sets, planned):
    own = SimpleNamespace(output=sets[0].output, buffer=sets[0].buffer, nbytes=1)
    assert buffer_sets.launches_again(Recording(), own, [own]) is None
