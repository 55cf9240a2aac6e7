"""Drives a fleet from its first node to the last trial: starts nodes, polls them, and passes on what they deliver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from tuner.errors import StoreError, SweepError
from tuner.fleet.cluster import Cluster, Machine, Reply
from tuner.fleet.ledger import Ledger, RefusedError
from tuner.fleet.messages import Delivery, Hello
from tuner.fleet.queue import LEASE_S
from tuner.store.engine import UnavailableError
from tuner.store.store import RunStatus
from tuner.sweep.plan import Plan

LOOK_S = 2.0
"""How often new machines are looked for."""
HELLO_S = 300.0
"""How long a node may take to open its GPUs."""
NOBODY_S = 60.0
"""How long a fleet without any node waits for one, once it had some."""
MAX_STARTS = 3
"""The most starts of a node on one machine."""
_POLL_S = 0.2
_log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Is told what happens."""

    def joined(self, ledger: Ledger, node: str) -> None:
        """A node takes part."""

    def delivered(self, ledger: Ledger, node: str, delivery: Delivery) -> None:
        """A node's delivery was committed."""

    def left(self, ledger: Ledger, node: str) -> None:
        """A node has left."""


class Driver:
    """One fleet at work.

    Attributes:
        deserted: whether it ended because no node was left.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, plan: Plan, watcher: Watcher, stop: threading.Event) -> None:
        """Prepare; nothing is started yet. Once `stop` is set the nodes finish the trials under way, and all ends."""
        self._cluster, self._ledger, self._plan = cluster, ledger, plan
        self._watcher, self._stop = watcher, stop
        self._begun = time.monotonic()
        self._starting: dict[str, tuple[Machine, float]] = {}
        self._on: dict[str, str] = {}
        self._starts: dict[str, int] = {}
        self._refused: dict[str, str] = {}
        self.deserted = False

    def work(self, job: tuple[Sequence[str], Sequence[str]], *, interpreted: bool) -> None:
        """Go on until everything is tuned, the time is up, or all nodes have stopped.

        Args:
            job: see `Cluster.start`.
            interpreted: whether nodes without a GPU take part.

        Raises:
            KeyboardInterrupt: `stop` was set before any node took part, or while the database's server was away.
            SweepError: no machine of the cluster can take part.
            StoreError: the database can no longer be written.
        """
        looked = turned = alone = -LEASE_S
        try:
            while True:
                now = time.monotonic()
                if now - looked >= LOOK_S and not self._is_over():
                    looked = now
                    self._look(job, interpreted=interpreted, now=now)
                if self._ledger.working or self._starting:
                    alone = now
                elif self._is_over() or now - alone > (NOBODY_S if self._ledger.members else LOOK_S):
                    break
                self._turn(now, was_away=now - turned > LEASE_S / 2)
                turned = now
        except BaseException as e:
            gone = isinstance(e, UnavailableError) and self._stop.is_set()
            stopped = gone or isinstance(e, KeyboardInterrupt)
            self._end_all(RunStatus.INTERRUPTED if stopped else RunStatus.FAILED)
            if gone:
                _log.warning("%s: what was not stored is measured again by the same command", e)
                raise KeyboardInterrupt from e
            raise
        self.deserted = not self._is_over()
        self._end_all(RunStatus.DONE)
        if not self._ledger.members:
            if self._stop.is_set():
                raise KeyboardInterrupt
            raise SweepError("no machine of the cluster takes part: " + "; ".join(self._refused.values()))

    def _is_over(self) -> bool:
        """Whether no further node has anything to do."""
        done = bool(self._ledger.places) and not self._ledger.left
        return done or self._stop.is_set() or self._left_s() <= 0

    def _left_s(self) -> float:
        budget_s = self._plan.time_budget_s
        return float("inf") if budget_s is None else budget_s - (time.monotonic() - self._begun)

    def _look(self, job: tuple[Sequence[str], Sequence[str]], *, interpreted: bool, now: float) -> None:
        """Start a node on each machine that has none."""
        for machine_id, machine in self._cluster.machines().items():
            if machine_id in self._on.values() or machine_id in self._refused:
                continue
            if not machine.gpus and not interpreted:
                why = "Ray counts no GPU there: it measures nothing but with --device interpreter"
                self._refuse(machine_id, machine.host, why)
                continue
            count = self._starts[machine_id] = self._starts.get(machine_id, 0) + 1
            if count > MAX_STARTS:
                self._refuse(machine_id, machine.host, f"its process ended {MAX_STARTS} times: it is left alone")
                continue
            node = f"{machine.host} {machine_id[:6]} {count}"
            self._on[node], self._starting[node] = machine_id, (machine, now)
            self._cluster.start(node, machine_id, machine, job)

    def _turn(self, now: float, *, was_away: bool) -> None:
        """Take what nodes replied, and send them on."""
        replies = self._cluster.replies(_POLL_S)
        if not replies:
            time.sleep(0 if self._ledger.working else _POLL_S)
        for node in [node for node in replies if node in self._starting]:
            self._welcome(node, replies.pop(node), now)
        deliveries: dict[str, Delivery] = {}
        for node, reply in replies.items():
            if reply.error:
                self._lose(node, reply.error)
            else:
                deliveries[node] = reply.value or Delivery()
        self._ledger.heard(self._ledger.working if was_away else deliveries, now)
        for node in self._ledger.take(deliveries, self._stop, now):
            self._lose(node, self._ledger.members[node].ended or "")
        for node, delivery in deliveries.items():
            self._pass_on(node, delivery, now)
        for node in self._ledger.silent(now):
            self._lose(node, f"it was silent for {LEASE_S:.0f} s: it or the network to it hangs")
        for node, (machine, begun) in list(self._starting.items()):
            if now - begun > HELLO_S:
                reason = f"no answer for {HELLO_S:.0f} s: another job holds its GPUs, or it cannot reach this machine"
                self._drop(node)
                self._refuse(self._on.pop(node), machine.host, reason)
            elif self._stop.is_set() or (self._ledger.members and self._left_s() <= 0):
                self._drop(node)

    def _welcome(self, node: str, reply: Reply, now: float) -> None:
        machine, _ = self._starting.pop(node)
        hello = reply.value
        reason = reply.error
        if not reason:
            assert isinstance(hello, Hello)
            for line in hello.warnings:
                _log.warning("%s: %s", machine.host, line)
            try:
                run = self._ledger.join(node, hello, now, stop=self._stop)
            except RefusedError as e:
                reason = str(e)
        if reason:
            self._drop(node)
            if reply.is_lost:
                del self._on[node]  # it may be started again
                _log.warning("%s did not start: %s", machine.host, reason)
            else:
                self._refuse(self._on.pop(node), machine.host, reason)
            return
        self._watcher.joined(self._ledger, node)
        left_s = self._left_s()
        plan = replace(self._plan, time_budget_s=None if left_s > 1e9 else left_s)
        self._cluster.call(node, "begin", run, plan, self._ledger.counted, self._ledger.is_shared)

    def _pass_on(self, node: str, delivery: Delivery, now: float) -> None:
        member = self._ledger.members[node]
        if member.ended is not None:
            return
        for line in delivery.warnings:
            _log.warning("%s: %s", member.host, line)
        self._watcher.delivered(self._ledger, node, delivery)
        if delivery.end is None:
            self._cluster.call(node, "exchange", self._ledger.orders(node, now, stop=self._stop.is_set()))
        elif delivery.end.error:
            self._lose(node, delivery.end.error)
        else:
            self._leave(node, "", RunStatus.INTERRUPTED if self._stop.is_set() else RunStatus.DONE)

    def _lose(self, node: str, why: str) -> None:
        held = len(self._ledger.members[node].place.queue.held(node))
        _log.warning("%s is lost: %s; what it held (%d) goes to the others", self._ledger.members[node].host, why, held)
        self._leave(node, why, RunStatus.FAILED)
        self._on.pop(node, None)

    def _leave(self, node: str, why: str, status: RunStatus) -> None:
        for item in self._ledger.leave(node, why):
            _log.warning("%s is given up: the nodes that had begun it died", item)
        self._cluster.end(node)
        self._ledger.end_run(node, status, self._stop)
        self._watcher.left(self._ledger, node)

    def _end_all(self, status: RunStatus) -> None:
        for node in self._ledger.working:
            self._cluster.end(node)
            try:
                self._ledger.end_run(node, status, self._stop)
            except StoreError as e:
                _log.debug("%s: %s", node, e)  # this fault may be why the fleet ends

    def _drop(self, node: str) -> None:
        self._starting.pop(node, None)
        self._cluster.end(node)

    def _refuse(self, machine_id: str, host: str, reason: str) -> None:
        self._refused[machine_id] = f"{host}: {reason}"
        _log.warning("%s", self._refused[machine_id])
