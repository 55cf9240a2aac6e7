"""The driver's side of a fleet: it leases work to nodes and is the only one that writes to the database.

There is one queue for each device and environment. What a node delivers is acknowledged by being committed: work is
over, and a node's question is answered, only after that. The ledger does not know Ray, and looks at a clock only while
the server is away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TypeVar

from tuner.errors import StoreError, TunerError
from tuner.fleet.messages import Answer, Delivery, Hello, Item, Orders
from tuner.fleet.queue import Queue
from tuner.fleet.work import work_of
from tuner.hardware.device import Device, Environment
from tuner.problem import Problem
from tuner.store.engine import UnavailableError
from tuner.store.outage import LIMIT_S
from tuner.store.store import Run, RunStatus, Store
from tuner.sweep.counted import ALL, Counted
from tuner.sweep.history import History
from tuner.sweep.loop import HEARTBEAT_S
from tuner.sweep.report import ProblemReport, Report
from tuner.version import __version__

T = TypeVar("T")
_READS = frozenset({"settled", "newest_trial_at", "winner", "winners", "families", "runs_since"})
_CLAIMS = frozenset({"claim", "begin_claimed", "claimed_by_others"})
_WRITES = frozenset({"record_rows", "decide", "record_family", "release"})
_PAUSE_S = 1.0
_log = logging.getLogger(__name__)


class RefusedError(TunerError):
    """A node that may not take part, and why."""


@dataclass(slots=True)
class Place:
    """A device and an environment, whose problems are tuned once.

    Attributes:
        queue: its work.
        report: what came of it.
        first_host: the first node's.
        known: problems that may have trials, and families of such.
    """

    queue: Queue[Item]
    report: Report
    first_host: str
    known: set[Item]

    def unknown(self, items: Sequence[Item]) -> frozenset[Item]:
        """Return the items of which the database knows nothing; from now on it may know of all of them."""
        found = {item for item in items if (item if isinstance(item, Problem) else item.family) not in self.known}
        self.known.update(items, (item.family for item in found if not isinstance(item, Problem)))
        return frozenset(found)


@dataclass(slots=True)
class Member:
    """A node that takes part.

    Attributes:
        host: its name.
        problems, trials: how many ended.
        ended: why it takes part no more; None while it does.
        answer: to its last question, until it is sent.
        to_ask, asked: what it should give back, until it is asked and until it says what it gives.
        beat: when its run's heartbeat was last written.
    """

    host: str
    place: Place
    run: Run
    problems: int = 0
    trials: int = 0
    ended: str | None = None
    answer: Answer | None = None
    to_ask: list[Item] = field(default_factory=list)
    asked: list[Item] = field(default_factory=list)
    beat: float = 0.0


class Ledger:
    """The queues, the members, and the store.

    Attributes:
        places: by device and environment, in the order their first nodes came.
        members: by node, those that left included.
    """

    def __init__(
        self,
        store: Store,
        problems: Callable[[Device], Iterable[Item]],
        kernels: Mapping[str, str],
        *,
        argv: Sequence[str] = (),
        mixed: bool = False,
        counted: Counted = ALL,
    ) -> None:
        """Begin without nodes.

        Args:
            store: open for writing.
            problems: what is to be tuned on a device.
            kernels: this process's, as `tuner.fleet.node.kernels_of` gives them.
            argv: the command line, kept with the runs.
            mixed: whether nodes of one device may have several environments, each of which is tuned.
            counted: the earlier runs that count; see `Plan.counted`.
        """
        self._store, self._problems, self._kernels = store, problems, kernels
        self._argv, self._mixed, self._counted = argv, mixed, counted
        self.places: dict[tuple[Device, Environment], Place] = {}
        self.members: dict[str, Member] = {}

    @property
    def counted(self) -> Counted:
        """The runs whose trials and decisions count, this fleet's among them."""
        return self._counted.joined(*(each.run.id for each in self.members.values()))

    @property
    def is_shared(self) -> bool:
        """Whether other runs may write to the same database."""
        return self._store.is_shared

    @property
    def left(self) -> int:
        """How much work is neither over nor given up."""
        return sum(len(place.queue) for place in self.places.values())

    @property
    def working(self) -> list[str]:
        """The nodes that take part now."""
        return [node for node, member in self.members.items() if member.ended is None]

    def join(self, node: str, hello: Hello, now: float, *, stop: threading.Event | None = None) -> Run:
        """Take on a node, whose run begins; a server that is away is waited for until `stop` is set.

        Raises:
            RefusedError: it would measure something else than the others.
            StoreError: the run could not be stored.
        """

        def begin(_again: bool) -> tuple[Place, Run]:
            place = self._place(hello)
            return place, self._store.begin_run(hello.device, hello.environment, argv=self._argv, host=hello.host)

        place, run = self._retry(begin, stop or threading.Event())
        place.queue.join(node, hello.gpus, now)
        self.members[node] = Member(hello.host, place, run, beat=now)
        return run

    def _place(self, hello: Hello) -> Place:
        if hello.version != __version__:
            raise RefusedError(f"triton-tuner {hello.version} is there and {__version__} here: install this one there")
        if differ := sorted(
            name for name in {*hello.kernels, *self._kernels} if hello.kernels.get(name) != self._kernels.get(name)
        ):
            raise RefusedError(f"its kernels differ from those here ({', '.join(differ)}): install the same package")
        key = (hello.device, hello.environment)
        others = [each for (device, _), each in self.places.items() if device == hello.device]
        if key not in self.places:
            if others and not self._mixed:
                raise RefusedError(_difference(hello.environment, others[0]))
            work = work_of(self._problems(hello.device), hello.device)
            tried = [row.problem for row in self._store.problems(device_slug=hello.device.slug)]
            known: set[Item] = {*tried, *(problem.group() for problem in tried)}
            known.update(_beside_ladders(each.key for each in work))
            self.places[key] = Place(Queue(work), Report(*key), hello.host, known)
        return self.places[key]

    def heard(self, nodes: Iterable[str], now: float) -> None:
        """Renew the leases of nodes that answered."""
        for node in nodes:
            self.members[node].place.queue.heartbeat(node, now)

    def silent(self, now: float) -> list[str]:
        """The nodes that have been silent for too long."""
        return [node for place in self.places.values() for node in place.queue.expired(now)]

    def take(self, deliveries: Mapping[str, Delivery], stop: threading.Event, now: float) -> list[str]:
        """Commit what nodes delivered, then note what came of their work and answer their questions.

        Returns:
            Nodes that can no longer take part, because what they delivered cannot be stored; `members` says why.

        Raises:
            StoreError: the server has been away for too long, or while `stop` was set.
        """
        for node in deliveries:
            if now - self.members[node].beat >= HEARTBEAT_S:
                self.members[node].beat = now
                deliveries[node].writes.append(("heartbeat", ()))
        failed = self._write(deliveries, stop)
        for node, delivery in deliveries.items():
            if node not in failed:
                self._note(node, delivery, stop)
        return failed

    def orders(self, node: str, now: float, *, stop: bool) -> Orders:
        """What a node should do next."""
        member = self.members[node]
        queue = member.place.queue
        answer, member.answer = member.answer, None
        items = () if stop else tuple(queue.take(node, now))
        if not stop and (found := queue.steal(node, now)) is not None:
            victim, wanted = found
            self.members[victim].to_ask += wanted
        member.asked, member.to_ask = member.to_ask, []
        # Other runs may record a problem at any time, so a node asks about it once it has claimed it.
        unknown = frozenset() if self.is_shared else member.place.unknown(items)
        return Orders(items, unknown, tuple(member.asked), answer, closing=not queue, stop=stop)

    def leave(self, node: str, why: str) -> list[Item]:
        """Take a node's work back, which died unless `why` is ""; returns what is given up: too many died of it."""
        member = self.members[node]
        member.ended = why
        report = member.place.report
        decided = {each.problem for each in report.problems if each.winner is not None}
        given_up = member.place.queue.leave(node, died=bool(why))
        for item in given_up:
            reason = "given up: the nodes that had begun it died"
            rungs = (item,) if isinstance(item, Problem) else item.rungs
            report.problems += [ProblemReport(rung, None, reason) for rung in rungs if rung not in decided]
        return given_up

    def end_run(self, node: str, status: RunStatus, stop: threading.Event) -> None:
        """Record how a node's run ended."""
        self._retry(lambda _again: self._store.end_run(self.members[node].run, status), stop)

    def reports(self, *, interrupted: bool, seconds: float, deserted: bool = False) -> list[Report]:
        """Each place's report, with the problems that no node began; `deserted` where no node was left for them."""
        found = []
        for (device, environment), place in self.places.items():
            report = place.report
            report.problems = list({each.problem: each for each in report.problems}.values())  # two nodes may begin one
            tried = {problem.problem for problem in report.problems}
            for item in place.queue.unfinished:
                rungs = (item,) if isinstance(item, Problem) else item.rungs
                report.untried += [rung for rung in rungs if rung not in tried]
                tried.update(rungs)  # another ladder may have some of them
            history = History(self._store, device, environment, self.counted)
            report.untuned = history.undecided(report.untried)
            report.interrupted, report.seconds = interrupted, seconds
            report.deserted = deserted and bool(place.queue)
            found.append(report)
        return found

    def _write(self, deliveries: Mapping[str, Delivery], stop: threading.Event) -> list[str]:
        """Write all of some deliveries in one transaction; where one cannot be stored, each in its own."""

        def write(nodes: Iterable[str], again: bool) -> None:
            with self._store.in_one_transaction(again=again):
                for node in nodes:
                    for method, arguments in deliveries[node].writes:
                        assert method in _WRITES or method == "heartbeat"
                        getattr(self._store, method)(self.members[node].run, *arguments)

        writing = [node for node, delivery in deliveries.items() if delivery.writes]
        if not writing:
            return []
        try:
            self._retry(partial(write, writing), stop)
        except UnavailableError:
            raise
        except StoreError:
            return [node for node in writing if not self._stored(node, partial(write, [node]), stop)]
        return []

    def _stored(self, node: str, write: Callable[[bool], None], stop: threading.Event) -> bool:
        try:
            self._retry(write, stop)
        except UnavailableError:
            raise
        except StoreError as e:
            self.members[node].ended = str(e)
            return False
        return True

    def _retry(self, ask: Callable[[bool], T], stop: threading.Event) -> T:
        """Ask the store, and try again while the server is away; nodes keep what they measure meanwhile.

        `ask` is told whether it was tried before.
        """
        asked, again = time.monotonic(), False
        while True:
            try:
                answer = ask(again)
            except UnavailableError as e:
                if not again:
                    _log.warning("%s: nodes go on measuring and keep it; trying again", e)
                if stop.is_set() or time.monotonic() - asked >= LIMIT_S:
                    raise
                again = True
                time.sleep(_PAUSE_S)
            else:
                if again:
                    _log.warning("%s: the database answers again", self._store.location)
                return answer

    def _note(self, node: str, delivery: Delivery, stop: threading.Event) -> None:
        member = self.members[node]
        queue, report = member.place.queue, member.place.report
        for item in delivery.begun:
            queue.begun(node, item)
        for item in delivery.ended:
            if not stop.is_set():  # a sweep that is stopped reports as ended what has no result
                queue.ended(node, item)
        queue.returned(node, member.asked, delivery.returned)
        member.problems += len(delivery.problems)
        member.trials += delivery.trials
        report.problems += delivery.problems
        report.families += delivery.families
        if delivery.question is not None:
            member.answer = self._answered(member.run, delivery.question, stop)
        if delivery.end is not None:
            report.start_s = max(report.start_s, delivery.end.start_s)
            report.compiled += delivery.end.compiled
            report.compile_s = max(report.compile_s, delivery.end.compile_s)

    def _answered(
        self, run: Run, question: tuple[str, tuple[object, ...], dict[str, object]], stop: threading.Event
    ) -> Answer:
        method, arguments, options = question
        if method == "settled":  # where not all runs count, a dead node's trials do
            options = {"counted": self.counted.ids}
        assert method in _READS | _CLAIMS
        arguments = (run, *arguments) if method in _CLAIMS else arguments
        try:
            return Answer(self._retry(lambda _again: getattr(self._store, method)(*arguments, **options), stop))
        except UnavailableError:
            raise
        except StoreError as e:
            return Answer(error=str(e))


def _beside_ladders(items: Iterable[Item]) -> set[Problem]:
    """Ladders' families with other ladders or problems beside them, and these problems: two nodes may measure them."""
    listed = list(items)
    ladders = Counter(each.family for each in listed if not isinstance(each, Problem))
    beside = {each: each.group() for each in listed if isinstance(each, Problem) and each.group() in ladders}
    return {*beside, *beside.values(), *(family for family, count in ladders.items() if count > 1)}


def _difference(there: Environment, place: Place) -> str:
    """What tells an environment from the one that a device's first node has."""
    first = place.report.environment
    differ = [
        f"{name} {getattr(there, name)} is there and {getattr(first, name)} on {place.first_host}"
        for name in (each.name for each in fields(Environment))
        if getattr(there, name) != getattr(first, name)
    ]
    return f"{', '.join(differ)}: make them equal, or add --mixed to tune for both"
