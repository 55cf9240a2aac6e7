"""A driver beside other runs on one server: each problem is measured by one of them."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from private_server import programs, running

from tuner.fleet.drive import Driver
from tuner.fleet.ledger import Ledger
from tuner.fleet.messages import Delivery, Hello
from tuner.fleet.node import kernels_of
from tuner.hardware.device import KNOWN, Environment
from tuner.store.store import RunStatus, Store
from tuner.sweep.plan import Plan
from tuner.sweep.run import sweep
from tuner.sweep.strategies import EXHAUSTIVE
from tuner.version import __version__


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if (binaries := programs()) is None:
        pytest.skip("no PostgreSQL server is installed")
    with running(binaries) as server:
        yield server


@pytest.fixture
def url(server, request):
    """A new database for each test, which counts all of its trials."""
    name = f"fleet_{request.node.name[:40]}"
    server.execute(f"CREATE DATABASE {name}")
    return server.url(name)


class Watcher:
    """Acts once a node has delivered its first trial."""

    def __init__(self, action):
        self.action = action

    def joined(self, *_):
        pass

    left = joined

    def delivered(self, _ledger, _node, delivery):
        if delivery.trials and self.action is not None:
            self.action, act = None, self.action
            act()


def test_what_a_dead_node_claimed_is_free_at_once_for_the_other_driver(faulty, url):
    problems = [faulty(m) for m in (1, 2)]
    hello = Hello("a", 1, KNOWN["sm_90"], Environment("3.7.1", "2.13.0", "", "", "3.11"), __version__, {})
    stop = threading.Event()
    with Store.open(url) as store, Store.open(url) as beside:
        ours, theirs = (Ledger(each, lambda _device: problems, {}) for each in (store, beside))
        run = ours.join("ours", hello, 0.0)
        theirs.join("theirs", hello, 0.0)

        def asked(ledger, node, method, *arguments, **options):
            ledger.take({node: Delivery(question=(method, arguments, options))}, stop, 0.0)
            return ledger.orders(node, 0.0, stop=False).answer.value

        assert asked(theirs, "theirs", "claim", problems[0], begin=True)
        assert asked(theirs, "theirs", "claim", problems[1], begin=False)
        assert not asked(ours, "ours", "claim", problems[0], begin=True)
        assert set(asked(ours, "ours", "claimed_by_others", tuple(problems))) == set(problems)
        theirs.leave("theirs", "it died")
        theirs.end_run("theirs", RunStatus.FAILED, stop)
        assert asked(ours, "ours", "claimed_by_others", tuple(problems)) == {}
        assert all(asked(ours, "ours", "claim", each, begin=True) for each in problems)
        theirs.join("late", hello, 0.0)
        assert set(asked(theirs, "late", "claimed_by_others", tuple(problems))) == set(problems)
        store.end_run(run, RunStatus.DONE)


@pytest.mark.long
def test_two_drivers_share_one_server_though_a_node_of_one_dies(faulty, cluster, url):
    problems = [faulty(m, configs=4, sleep_ms=10) for m in range(60, 66)]
    dying = cluster("a")

    def lose():
        dying.up = {"c": dataclasses.replace(dying.up["a"], host="c")}

    with Store.open(url) as store, Store.open(url) as beside, ThreadPoolExecutor() as pool:
        other = pool.submit(tune, beside, cluster("b"), problems)
        reports = [tune(store, dying, problems, lose), other.result(timeout=120)]
        for report in reports:
            assert {each.problem for each in report.problems if each.winner} == set(problems)
        trials = Counter((trial.problem, trial.config) for trial in store.trials() if trial.problem in problems)
    assert (len(trials), set(trials.values())) == (4 * len(problems), {1})


def tune(store, cluster, problems, action=None):
    found = Ledger(store, lambda _device: problems, kernels_of(["faulty"]))
    driver = Driver(cluster, found, Plan(EXHAUSTIVE), Watcher(action), threading.Event())
    driver.work((["faulty"], ()), interpreted=True)
    (report,) = found.reports(interrupted=False, seconds=1.0)
    return report


@pytest.mark.long
def test_a_driver_and_a_plain_run_share_the_problems_of_one_server(faulty, cluster, url):
    problems = [faulty(m, configs=6, sleep_ms=20) for m in range(16, 16 + 14)]
    plain = []
    with Store.open(url) as store, Store.open(url) as beside, ThreadPoolExecutor() as pool:

        def run_beside():
            plain.append(pool.submit(lambda: sweep(beside, problems, [None], Plan(EXHAUSTIVE))))

        report = tune(store, cluster("a"), problems, run_beside)
        for told in (report, plain[0].result(timeout=120)):
            assert {each.problem for each in told.problems if each.winner} == set(problems)
        trials = Counter((trial.problem, trial.config) for trial in store.trials())
        assert (len(trials), set(trials.values())) == (6 * len(problems), {1})
        assert len({trial.run for trial in store.trials()}) == 2
        again = tune(store, cluster("b"), problems)
        assert {each.reason for each in again.problems} == {"already tuned"}
        assert len(store.trials()) == len(trials)
