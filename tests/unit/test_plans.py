"""How many plans are kept, and when they are forgotten."""

from __future__ import annotations

import itertools
import sys
import threading
from types import SimpleNamespace

import pytest

import tuner
from tuner.hardware.device import KNOWN
from tuner.kernel.config import Config
from tuner.launch import bounded_cache, plan
from tuner.lookup import lookup
from tuner.lookup.decision import Match
from tuner.problem import Problem


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


def test_a_range_that_failed_makes_room_for_another():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from tuner.launch.any_rows import AnyRowsCache

    cache, given, sources = AnyRowsCache(), [torch.empty(4, 8)], lookup.resolver()
    first, second, third = (SimpleNamespace(is_bad=False, serves_like=lambda *_: False) for _ in range(3))
    cache.add(first, given, (16,), (), sources)
    cache.add(second, given, (16,), (), sources)
    first.is_bad = True
    cache.add(third, given, (16,), (), sources)
    assert list(cache._by_kind.values()) == [(third, second)]


def test_a_plan_that_writes_into_an_output_counts_as_a_change_in_place():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from tuner.launch.call_cache import CallCache

    cache, x, out, written = CallCache(), torch.ones(4), torch.ones(4), []
    bound = SimpleNamespace(matches=lambda *_: True, run_into=written.append)
    addresses = out.data_ptr(), x.data_ptr()
    cache.plans.add("key", bound, lookup.resolver())
    cache.plans.add_address(bound, "key", (addresses, ((), "out")))
    before = out._version
    assert cache.run((x,), (), out) is out
    assert written == [addresses]
    assert out._version > before


def test_more_addresses_than_are_kept_begin_anew(plans, monkeypatch):
    monkeypatch.setattr(plan, "MOST_ADDRESSES", 2)
    plans.add("key", "plan", lookup.resolver())
    for address in range(3):
        plans.add_address("plan", "key", address)
    assert plans.by_address == {2: "plan"}


def test_families_of_which_one_range_was_called_begin_anew_where_there_are_too_many(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    from tuner.kernels.ops import compile_ahead
    from tuner.kernels.ops.checked_call import CheckedCall

    monkeypatch.setattr(compile_ahead, "_MOST", 4)
    config = Config("pointer")
    match = Match(config.kernel, config, "default", "formula", "none")
    for length in range(1, 12):  # of a cache that grows, each is a family of its own
        problem = Problem(1, length, 128, op="bmm", extras={"batch": 8})
        compile_ahead.prepare(CheckedCall(None, problem, KNOWN["sm_90"], 0, match), plan.Recording())
    assert 0 < len(compile_ahead._called) <= 4
    tuner.use(None)


def test_values_are_made_once_and_forgotten_where_all_caches_have_too_many(monkeypatch):
    monkeypatch.setattr(bounded_cache, "_count", itertools.count(1))
    monkeypatch.setattr(bounded_cache, "MOST_IN_ALL_CACHES", 4)
    made: list[int] = []

    def make(at: int) -> int:
        made.append(at)
        return -at

    caches = [bounded_cache.BoundedCache(make, 100) for _ in range(2)]
    for at in (1, 1, 2, 1):
        assert [cache[at] for cache in caches] == [-at, -at]
    # When the fourth was made all were forgotten.
    assert made == [1, 1, 2, 2, 1, 1]
    assert [dict(cache) for cache in caches] == [{1: -1}, {2: -2, 1: -1}]


def test_a_cache_that_is_full_begins_anew():
    cache = bounded_cache.BoundedCache(str, 2)
    assert [cache[at] for at in (1, 2, 3)] == ["1", "2", "3"]
    assert dict(cache) == {3: "3"}


def test_values_are_forgotten_while_another_thread_makes_plans(monkeypatch):
    monkeypatch.setattr(bounded_cache, "MOST_IN_ALL_CACHES", 1)
    caches = [bounded_cache.BoundedCache(str, 100) for _ in range(2000)]
    done = threading.Event()

    def make_plans() -> None:
        while not done.is_set():
            caches.append(bounded_cache.BoundedCache(str, 100))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=make_plans)
    thread.start()
    try:
        for at in range(20):
            assert caches[0][at] == str(at)
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(before)
    assert list(caches[0]) == [19]
