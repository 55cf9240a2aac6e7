"""The queue of a fleet: whatever happens to the nodes, each piece of work is somewhere, once, and ends once."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tuner.fleet.queue import HORIZON_S, LEASE_S, MAX_DEATHS, Queue, Work


def drained(queue: Queue, node: str, now: float = 0.0) -> list:
    """What one node is given until nothing is left, each begun and ended before more is asked for."""
    given = []
    while taken := queue.take(node, now):
        given += taken
        for key in taken:
            queue.begun(node, key)
            queue.ended(node, key)
    return given


def test_classes_stay_together_and_within_one_the_longest_goes_first():
    work = [Work((name, cost), float(cost), name) for cost in range(1, 8) for name in "abc"]
    random.Random(1).shuffle(work)
    queue = Queue(work)
    queue.join("n", 1, 0.0)
    given = drained(queue, "n")
    for name in "abc":
        mine = [index for index, (its, _) in enumerate(given) if its == name]
        assert mine == list(range(mine[0], mine[0] + 7))
        assert [given[index][1] for index in mine] == [7, 6, 5, 4, 3, 2, 1]
    assert not queue
    assert len(queue.over) == 21


def test_nodes_begin_with_different_classes_and_share_one_that_is_most_of_the_work():
    queue = Queue([*(Work(f"a{i}", 10.0, "a") for i in range(8)), *(Work(f"b{i}", 10.0, "b") for i in range(8))])
    for node in ("x", "y"):
        queue.join(node, 1, 0.0)
    assert {key[0] for key in queue.take("x", 0.0)} != {key[0] for key in queue.take("y", 0.0)}
    queue = Queue([*(Work(f"a{i}", 10.0, "a") for i in range(60)), Work("b", 1.0, "b")])
    for node in ("x", "y"):
        queue.join(node, 1, 0.0)
    assert {key[0] for node in ("x", "y") for key in queue.take(node, 0.0)} == {"a"}


def test_a_node_holds_a_horizon_of_work_and_less_when_little_is_left():
    queue = Queue([Work(i, 1.0) for i in range(1000)])
    for node in "abcd":
        queue.join(node, 2, 0.0)
    assert len(queue.take("a", 0.0)) == 2 * HORIZON_S
    assert queue.take("a", 0.0) == []
    queue = Queue([Work(i, 1.0) for i in range(16)])
    for node in "abcd":
        queue.join(node, 1, 0.0)
    assert [len(queue.take(node, 0.0)) for node in "abcd"] == [2, 2, 2, 2]


def test_a_dead_nodes_leases_go_back_and_a_silent_node_loses_its_own():
    queue = Queue([Work(i, 1.0) for i in range(4)])
    queue.join("dies", 4, 0.0)
    queue.join("lives", 1, 0.0)
    taken = queue.take("dies", 0.0)
    queue.begun("dies", taken[0])
    queue.begun("dies", taken[1])
    queue.ended("dies", taken[1])
    queue.heartbeat("lives", LEASE_S)
    assert queue.expired(LEASE_S + 0.1) == ["dies"]
    assert queue.leave("dies") == []
    assert sorted(drained(queue, "lives")) == sorted(set(range(4)) - {taken[1]})
    assert not queue


def test_what_has_begun_on_nodes_that_died_too_often_is_given_up_and_the_rest_is_not():
    queue = Queue([Work("kills", 2.0), Work("harmless", 1.0)])
    for attempt in range(MAX_DEATHS):
        node = f"n{attempt}"
        queue.join(node, 2, 0.0)
        assert sorted(queue.take(node, 0.0)) == ["harmless", "kills"]
        queue.begun(node, "kills")
        assert queue.leave(node) == (["kills"] if attempt == MAX_DEATHS - 1 else [])
    queue.join("last", 1, 0.0)
    assert drained(queue, "last") == ["harmless"]
    assert queue.given_up == {"kills"}
    assert not queue


def stolen_from_a() -> tuple[Queue, list]:
    queue = Queue([Work(i, 1.0) for i in range(6)])
    queue.join("a", 6, 0.0)
    assert len(queue.take("a", 0.0)) == 6
    queue.begun("a", 0)
    queue.join("b", 2, 0.0)
    assert queue.take("b", 0.0) == []
    victim, asked = queue.steal("b", 0.0)
    assert victim == "a"
    assert 0 not in asked
    assert queue.steal("b", 0.0) is None, "one answer is waited for"
    return queue, asked


def test_only_what_is_not_begun_is_stolen_and_never_twice():
    queue, asked = stolen_from_a()
    queue.begun("a", asked[0])  # while the question was on its way
    queue.returned("a", asked, asked[1:])
    assert queue.take("b", 0.0) == asked[1:]
    for key in queue.held("a"):
        queue.begun("a", key)
        queue.ended("a", key)
    assert queue.steal("a", 1.0) is None, "what was stolen is not stolen back"


def test_what_a_thief_that_died_had_asked_for_waits_again():
    queue, asked = stolen_from_a()
    queue.leave("b")
    queue.returned("a", asked, asked)
    queue.join("c", 8, 0.0)
    assert sorted(queue.take("c", 0.0)) == sorted(asked)


class Fleet:
    """Nodes that join, die, answer and work at random on one queue, checked after every step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.keys = list(range(self.random.randrange(1, 60)))
        work = [Work(key, self.random.uniform(0.1, 20), self.random.randrange(4)) for key in self.keys]
        self.queue = Queue(work)
        self.begun: dict[str, set] = {}
        self.sent: dict[str, list] = {}
        self.asked: list[tuple[str, list]] = []
        self.ended, self.moved = Counter(), Counter()
        self.now, self.joined = 0.0, 0

    def step(self) -> None:
        self.now += self.random.random()
        nodes = list(self.sent)
        if not nodes or self.random.random() < 0.03:
            node, self.joined = f"n{self.joined}", self.joined + 1
            self.queue.join(node, self.random.randrange(1, 5), self.now)
            self.sent[node], self.begun[node] = [], set()
            return
        node = self.random.choice(nodes)
        if self.random.random() < 0.02:
            self.queue.leave(node)
            del self.sent[node], self.begun[node]
            self.asked = [(victim, keys) for victim, keys in self.asked if victim != node]
        elif self.asked and self.random.random() < 0.3:
            victim, keys = self.asked.pop()
            given = [key for key in keys if key in self.sent[victim] and key not in self.begun[victim]]
            self.sent[victim] = [key for key in self.sent[victim] if key not in given]
            self.moved.update(given)
            self.queue.returned(victim, keys, given)
        else:
            self.exchange(node)

    def exchange(self, node: str) -> None:
        self.queue.heartbeat(node, self.now)
        for key in [key for key in self.sent[node] if key in self.begun[node]][: self.random.randrange(3)]:
            self.queue.ended(node, key)
            self.sent[node].remove(key)
            self.ended[key] += 1
        self.sent[node] += self.queue.take(node, self.now)
        for key in self.sent[node][: self.random.randrange(4)]:
            self.queue.begun(node, key)
            self.begun[node].add(key)
        if (found := self.queue.steal(node, self.now)) is not None:
            victim, keys = found
            assert victim != node
            assert not self.begun[victim] & set(keys)
            self.asked.append(found)

    def check(self) -> None:
        held = Counter(key for node in self.queue._members for key in self.queue.held(node))
        waiting = Counter(key for keys in self.queue._waiting.values() for key in keys)
        everywhere = held + waiting + Counter(self.queue.over) + Counter(self.queue.given_up)
        assert everywhere == Counter(self.keys), "each is in one place"
        for node, sent in self.sent.items():
            assert set(sent) <= set(self.queue.held(node))
        assert all(count == 1 for count in self.ended.values())
        assert all(count == 1 for count in self.moved.values()), "nothing is stolen twice"


@pytest.mark.parametrize("seed", range(60))
def test_in_whatever_order_nodes_come_work_and_die_each_piece_of_work_ends_once(seed):
    fleet = Fleet(seed)
    for _ in range(4000):
        fleet.step()
        fleet.check()
        if not fleet.queue:
            break
    assert not fleet.queue, "it comes to an end"
    assert set(fleet.ended) == fleet.queue.over
