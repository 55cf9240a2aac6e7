"""The ledger of a fleet on a server that goes away: nodes wait, and each trial is stored once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tuner.fleet import ledger as ledger_module
from tuner.fleet.ledger import Ledger
from tuner.fleet.messages import Answer, Delivery, Hello
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.engine import UnavailableError
from tuner.store.records import KernelVersion, Outcome, State, Trial, Verdict
from tuner.store.rows import trial_values
from tuner.store.store import Store
from tuner.version import __version__

HELLO = Hello("a", 1, KNOWN["sm_90"], Environment("3.7.1", "2.13.0", "", "", "3.11"), __version__, {})
KERNEL = KernelVersion("matmul", "pointer", 1, "hash")
PROBLEM = Problem(16, 16, 16)


def delivery(number: int) -> Delivery:
    config = Config("pointer", n=number)
    trial = Trial(PROBLEM, config, KERNEL, Outcome(State.COMPLETE, median_us=float(number)))
    verdict = Verdict(config, float(number), None, None, (config,))
    return Delivery(writes=[("record_rows", ((trial_values(trial),),)), ("decide", (PROBLEM, KERNEL, verdict))])


def joined(store: Store) -> Ledger:
    found = Ledger(store, lambda _device: [PROBLEM], {})
    found.join("node", HELLO, 0.0)
    return found


def test_a_ledger_waits_for_a_server_that_restarts_and_then_answers_its_node(server, url, monkeypatch, caplog):
    monkeypatch.setattr(ledger_module, "_PAUSE_S", 0.2)
    with Store.open(url) as store:
        found = joined(store)
        found.take({"node": delivery(1)}, threading.Event(), 0.0)
        server.end()
        second = delivery(2)
        second.question = ("winner", (HELLO.device, HELLO.environment, PROBLEM), {})
        with ThreadPoolExecutor() as ledgers:
            taken = ledgers.submit(found.take, {"node": second}, threading.Event(), 1.0)
            while not caplog.records:  # until it has met the server's absence
                assert not taken.done()
                time.sleep(0.05)
            server.start()  # in this thread, with which the server would end
            assert taken.result(timeout=60) == []
        answer = found.orders("node", 1.0, stop=False).answer
        assert isinstance(answer, Answer)
        assert answer.value.median_us == 2.0
        assert sorted(trial.outcome.median_us for trial in store.trials()) == [1.0, 2.0]


def test_what_was_committed_without_an_answer_is_not_stored_twice(url, monkeypatch):
    monkeypatch.setattr(ledger_module, "_PAUSE_S", 0.0)
    lost = []
    once = Store.in_one_transaction

    @contextmanager
    def unanswered(self, *, again=False):
        with once(self, again=again):
            yield
        if not lost:
            lost.append(again)
            raise UnavailableError("the answer to the commit was lost")

    monkeypatch.setattr(Store, "in_one_transaction", unanswered)
    with Store.open(url) as store:
        found = joined(store)
        assert found.take({"node": delivery(1)}, threading.Event(), 0.0) == []
        assert lost == [False]
        assert [trial.outcome.median_us for trial in store.trials()] == [1.0]
        assert len(store.winners()) == 1
