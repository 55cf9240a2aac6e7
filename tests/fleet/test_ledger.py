"""What the driver's ledger does while the server is away, and when a node's work is over."""

from __future__ import annotations

import threading
import time

import pytest

from tuner.fleet import ledger as ledger_module
from tuner.fleet.feed import Feed
from tuner.fleet.ledger import Ledger
from tuner.fleet.messages import Delivery, Hello
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import ladders
from tuner.store.engine import UnavailableError
from tuner.store.records import KernelVersion, Outcome, State, Trial, Verdict, Winner
from tuner.store.store import Store
from tuner.sweep.counted import ALL, Counted
from tuner.sweep.ladder import Result
from tuner.sweep.report import ProblemReport
from tuner.sweep.shared_agenda import SharedAgenda
from tuner.version import __version__

HELLO = Hello("a", 1, KNOWN["sm_90"], Environment("3.7.1", "2.13.0", "", "", "3.11"), __version__, {})
PROBLEM = Problem(16, 16, 16)


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "tuner.db") as store:
        yield store


def test_a_node_that_comes_while_the_server_is_away_takes_part_once_it_answers(store, monkeypatch, caplog):
    monkeypatch.setattr(ledger_module, "_PAUSE_S", 0.0)
    begin_run, away = store.begin_run, [UnavailableError("it restarts")] * 2

    def begin(*words, **options):
        if away:
            raise away.pop()
        return begin_run(*words, **options)

    monkeypatch.setattr(store, "begin_run", begin)
    found = Ledger(store, lambda _device: [PROBLEM], {})
    run = found.join("node", HELLO, 0.0)
    assert found.working == ["node"]
    assert [row.uuid for row in store.runs()] == [run.uuid]
    assert "it restarts: nodes go on measuring and keep it; trying again" in caplog.text


def test_a_server_that_takes_long_to_say_nothing_is_given_up_when_the_time_is_over(store, monkeypatch):
    monkeypatch.setattr(ledger_module, "_PAUSE_S", 0.01)
    monkeypatch.setattr(ledger_module, "LIMIT_S", 0.5)
    found, asked = Ledger(store, lambda _device: [PROBLEM], {}), []
    found.join("node", HELLO, 0.0)

    def heartbeat(_run):
        asked.append(time.sleep(0.2))
        raise UnavailableError("no answer")

    monkeypatch.setattr(store, "heartbeat", heartbeat)
    with pytest.raises(UnavailableError):
        found.take({"node": Delivery(writes=[("heartbeat", ())])}, threading.Event(), 0.0)
    assert len(asked) <= 4


def test_a_server_that_stays_away_while_a_node_asks_ends_the_fleet_and_not_the_node(store, monkeypatch):
    monkeypatch.setattr(ledger_module, "LIMIT_S", 0.0)

    def winners(**_options):
        raise UnavailableError("no answer")

    monkeypatch.setattr(store, "winners", winners)
    found = Ledger(store, lambda _device: [PROBLEM], {})
    found.join("node", HELLO, 0.0)
    question = ("winners", (), {"device_slug": HELLO.device.slug})
    with pytest.raises(UnavailableError):
        found.take({"node": Delivery(question=question)}, threading.Event(), 0.0)


@pytest.mark.parametrize("beside", [Problem(5, 16, 16), *ladders(range(1, 5), lambda m: Problem(m, 16, 16))])
def test_a_ladder_beside_which_another_node_may_measure_is_asked_about(store, beside):
    (ladder,) = ladders(range(1, 9), lambda m: Problem(m, 16, 16))
    for listed, unknown in (([ladder], {ladder}), ([ladder, beside], set())):
        found = Ledger(store, lambda _device, listed=listed: listed, {})
        found.join("node", HELLO, 0.0)
        orders = found.orders("node", 0.0, stop=False)
        assert ladder in orders.items
        assert orders.unknown == unknown


def test_a_ladder_is_over_only_once_its_family_is_written(store):
    feed = Feed(lambda _config, _problem: None)
    (ladder,) = ladders(range(1, 3), lambda m: Problem(m, 16, 16))
    run = store.begin_run(HELLO.device, HELLO.environment, argv=[], host="a")
    agenda = SharedAgenda(store, run, feed)
    feed.offer([ladder])
    for step in [*iter(agenda.take, None)]:
        agenda.ended(step.problem, Result(None), ())
        assert not feed.over  # here a sweep writes what has ended
        agenda.release(step.problem)
    assert list(feed.over) == [ladder]


def test_a_problem_that_is_a_step_of_a_ladder_too_is_over_when_it_ends(store):
    feed = Feed(lambda _config, _problem: None)
    (ladder,) = ladders(range(1, 3), lambda m: Problem(m, 16, 16))
    feed.add(ladder)
    feed.add(ladder.rungs[0])
    while feed:
        feed.ended(feed.take().problem, Result(None), ())
    feed.written()
    assert list(feed.over) == [ladder.rungs[0], ladder]


def test_a_problem_that_has_ended_here_is_begun_no_more(store, monkeypatch):
    run = store.begin_run(HELLO.device, HELLO.environment, argv=[], host="a")
    agenda = SharedAgenda(store, run, Feed(lambda _config, _problem: None))
    monkeypatch.setattr(store, "begin_claimed", lambda *_: False)
    assert not agenda.begin(PROBLEM)
    assert agenda.problems == []


def test_what_nodes_that_were_stopped_had_begun_is_not_given_up(store):
    found = Ledger(store, lambda _device: [PROBLEM], {})
    for node in "abcd":
        found.join(node, HELLO, 0.0)
        assert found.orders(node, 0.0, stop=False).items == (PROBLEM,)
        found.take({node: Delivery(begun=[PROBLEM])}, threading.Event(), 0.0)
        assert found.leave(node, "") == []
    assert found.left == 1


def test_what_no_node_began_is_undecided_where_the_run_that_decided_it_does_not_count(store):
    past = store.begin_run(HELLO.device, HELLO.environment, argv=[], host="h")
    spec = registry.find("matmul", "gemv")
    config = spec.default_config(PROBLEM, HELLO.device)
    kernel = KernelVersion("matmul", "gemv", spec.version, "hash")
    store.record(past, [Trial(PROBLEM, config, kernel, Outcome(State.COMPLETE, median_us=1.0))])
    store.decide(past, PROBLEM, kernel, Verdict(config, 1.0, None, None, ties=(config,)))
    for counted, untuned in ((ALL, []), (Counted(frozenset()), [PROBLEM])):
        found = Ledger(store, lambda _device: [PROBLEM], {}, counted=counted)
        found.join("a", HELLO, 0.0)
        (report,) = found.reports(interrupted=True, seconds=1.0)
        assert (report.untried, report.untuned) == ([PROBLEM], untuned)


def test_of_a_ladder_that_is_given_up_the_rungs_with_a_winner_keep_it(store):
    (ladder,) = ladders(range(1, 3), lambda m: Problem(m, 16, 16))
    first, last = ladder.rungs
    winner = Winner(HELLO.device, HELLO.environment, first, Config("gemv"), 1, 1, "", "", 1.0, None, None, 1)
    found = Ledger(store, lambda _device: [ladder], {})
    for node in "abc":
        found.join(node, HELLO, 0.0)
        assert found.orders(node, 0.0, stop=False).items == (ladder,)
        delivery = Delivery(begun=[ladder], problems=[ProblemReport(first, winner, "")])
        found.take({node: delivery}, threading.Event(), 0.0)
        given_up = found.leave(node, "it died")
    assert given_up == [ladder]
    (report,) = found.reports(interrupted=False, seconds=1.0)
    assert {each.problem: each.winner for each in report.problems} == {first: winner, last: None}


def test_a_rung_of_two_ladders_that_nobody_began_is_counted_once(store):
    both = [*ladders(range(1, 3), lambda m: Problem(m, 16, 16)), *ladders(range(1, 9), lambda m: Problem(m, 16, 16))]
    found = Ledger(store, lambda _device: both, {})
    found.join("a", HELLO, 0.0)
    (report,) = found.reports(interrupted=False, seconds=1.0)
    assert sorted(each.m for each in report.untried) == sorted({rung.m for ladder in both for rung in ladder.rungs})
