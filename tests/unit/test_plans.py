"""How many plans are kept, and when they are forgotten."""

from __future__ import annotations

import itertools
import sys
import threading

import pytest

import tuner
from tuner.launch import arguments, plan
from tuner.lookup import lookup


@pytest.fixture
def plans():
    return plan.PlanCache()


def test_the_newest_plans_of_a_key_are_kept_and_asked_first(plans):
    for number in range(plan.MOST_OF_A_KEY + 2):
        plans.add("key", number, lookup.resolver())
    assert plans.by_key["key"] == tuple(range(plan.MOST_OF_A_KEY + 1, 1, -1))


def test_one_key_too_many_begins_anew(plans, monkeypatch):
    monkeypatch.setattr(plan, "MOST_KEYS", 2)
    for key in ("a", "b", "c"):
        plans.add(key, key, lookup.resolver())
    assert plans.by_key == {"c": ("c",)}


def test_other_sources_forget_every_plan_and_refuse_those_of_before(plans):
    before = lookup.resolver()
    plans.add("key", "plan", before)
    tuner.use(None)
    assert plans.by_key == {}
    plans.add("key", "late", before)
    assert plans.by_key == {}


def test_a_plan_that_served_at_addresses_is_forgotten_with_the_others(plans):
    plans.add("key", "plan", lookup.resolver())
    plans.add_address("plan", "key", "addresses")
    assert plans.by_address == {"addresses": "plan"}
    tuner.use(None)
    assert plans.by_address == {}
    plans.add_address("plan", "key", "addresses")
    assert plans.by_address == {}, "a call that began before sources changed kept its plan"


def test_more_addresses_than_are_kept_begin_anew(plans, monkeypatch):
    monkeypatch.setattr(plan, "MOST_ADDRESSES", 2)
    plans.add("key", "plan", lookup.resolver())
    for address in range(3):
        plans.add_address("plan", "key", address)
    assert plans.by_address == {2: "plan"}


def test_arguments_are_made_once_for_the_same_addresses_and_forgotten_where_all_steps_have_too_many(monkeypatch):
    monkeypatch.setattr(arguments, "_count", itertools.count(1))
    monkeypatch.setattr(arguments, "MOST_IN_ALL_CACHES", 4)
    launched: list[tuple[int, ...]] = []
    made: list[tuple[int, ...]] = []

    def make(*called: int) -> tuple[int, ...]:
        made.append(called)
        return called

    steps = [arguments.DirectStep(None, lambda *given: launched.append(given), make) for _ in range(2)]
    for address in (1, 1, 2, 1):
        for step in steps:
            step(0, address)
    assert launched == [(0, 1)] * 4 + [(0, 2)] * 2 + [(0, 1)] * 2
    assert made == [(0, 1)] * 2 + [(0, 2)] * 2 + [(0, 1)] * 2
    # When the fourth was made all were forgotten.
    assert [list(step.arguments) for step in steps] == [[(0, 1)], [(0, 2), (0, 1)]]


def test_encoded_descriptors_are_forgotten_with_the_arguments_they_are_in(monkeypatch):
    monkeypatch.setattr(arguments, "_count", itertools.count(1))
    monkeypatch.setattr(arguments, "MOST_IN_ALL_CACHES", 4)
    maps = arguments.BoundedCache(lambda at: f"map of {at}", 100)
    step = arguments.DirectStep(None, lambda *_given: None, lambda _stream, at: (maps[at],))
    for address in (1, 2):
        step(0, address)
    assert not maps, "two maps and two arguments were made"
    assert dict(step.arguments) == {(0, 2): ("map of 2",)}


def test_arguments_are_forgotten_while_another_thread_makes_plans(monkeypatch):
    monkeypatch.setattr(arguments, "MOST_IN_ALL_CACHES", 1)
    steps = [arguments.DirectStep(None, lambda *_given: None, lambda *called: called) for _ in range(2000)]
    done = threading.Event()

    def make_plans() -> None:
        while not done.is_set():
            steps.append(arguments.DirectStep(None, lambda *_given: None, lambda *called: called))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=make_plans)
    thread.start()
    try:
        for address in range(20):
            steps[0](0, address)
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(before)
    assert list(steps[0].arguments) == [(0, 19)]
