"""A cluster within this process: real nodes and sweeps, and calls that take no network."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tuner.fleet.cluster import Machine, Reply
from tuner.fleet.messages import Answer
from tuner.fleet.node import Node
from tuner.kernel import registry
from tuner.problem import Problem

FAULTY = Path(__file__).parents[1] / "sweep" / "faulty"


@pytest.fixture
def faulty(monkeypatch):
    """Installs the kernel of tests/sweep/faulty, here and in child processes; gives a maker of its problems."""
    monkeypatch.syspath_prepend(FAULTY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAULTY), os.environ.get("PYTHONPATH", "")]))
    registry.forget()
    yield lambda m=16, **extras: Problem(m, 16, 16, dtype="float32", op="faulty", extras=extras)
    registry.forget()


class HereCluster:
    """As `tuner.fleet.cluster.Cluster`, with every node in this process.

    Attributes:
        up: the machines that are there; a test adds and removes some.
        as_if: changes what a node says that it is, by host.
        hung, killed: hosts that do not answer, and nodes whose process is gone.
    """

    def __init__(self, *hosts: str) -> None:
        self.up = {host: Machine(host, 1) for host in hosts}
        self.nodes: dict[str, Node] = {}
        self.hosts: dict[str, str] = {}
        self.as_if: dict[str, object] = {}
        self.hung: set[str] = set()
        self.killed: set[str] = set()
        self.sweeping: set[str] = set()
        self.over: set[str] = set()
        self._calls: dict[Future, str] = {}
        self._threads = ThreadPoolExecutor(8)

    def machines(self):
        return dict(self.up)

    def start(self, node, machine_id, machine, job):
        before = list(logging.getLogger("tuner").handlers)
        self.nodes[node], self.hosts[node] = Node([None], *job), machine.host
        logging.getLogger("tuner").handlers = before  # a node passes on what its own process logs: here the driver's
        self.call(node, "hello")

    def call(self, node, method, *arguments):
        self._calls[self._threads.submit(self._answer, node, method, arguments)] = node

    def _answer(self, node, method, arguments):
        host = self.hosts[node]
        if host in self.hung:
            threading.Event().wait(5)
        if node in self.killed:
            return Reply(error="its process was killed", is_lost=True)
        try:
            value = getattr(self.nodes[node], method)(*arguments)
        except Exception as e:  # noqa: BLE001  as Ray carries it
            return Reply(error=str(e))
        if host not in self.up:
            return Reply(error="the machine is gone", is_lost=True)
        if method == "begin":
            self.sweeping.add(node)
        if method == "exchange" and value.end is not None:
            self.sweeping.remove(node)
            self.over.add(node)
        if method == "hello":
            value = self.as_if.get(host, lambda hello: hello)(dataclasses.replace(value, host=host))
            self.nodes[node]._environment = value.environment
        return Reply(value)

    def replies(self, timeout_s):
        ready, _ = wait(self._calls, timeout_s, return_when="FIRST_COMPLETED")
        return {node: call.result() for call in ready if (node := self._calls.pop(call)) in self.nodes}

    def end(self, node):
        """End a node's sweep: here it has no process whose end would."""
        gone = self.nodes.pop(node, None)
        if gone is not None and hasattr(gone, "_processes"):
            gone._stop.set()
            for supervisor in gone._processes.supervisors:
                supervisor.worker.send_kill()
            if node in self.sweeping:
                with gone._changed:
                    gone._answer = Answer(error="the driver is gone")
                    gone._changed.notify_all()
                    gone._changed.wait_for(lambda: gone._out.end is not None, 20)
            elif node not in self.over:
                gone._processes.__exit__()
        self._calls = {call: other for call, other in self._calls.items() if other != node}


@pytest.fixture
def cluster():
    return HereCluster
