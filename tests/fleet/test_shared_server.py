"""A driver beside other runs on one server: each problem is measured by one of them."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from private_server import programs, running

from tuner.fleet.drive import Driver
from tuner.fleet.ledger import Ledger
from tuner.fleet.node import kernels_of
from tuner.store.store import Store
from tuner.sweep.report import Plan
from tuner.sweep.run import sweep
from tuner.sweep.strategies import EXHAUSTIVE


@pytest.fixture(scope="module")
def url():
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    if (binaries := programs()) is None:
        pytest.skip("no PostgreSQL server is installed")
    with running(binaries) as server:
        server.execute("CREATE DATABASE fleet")
        yield server.url("fleet")


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
