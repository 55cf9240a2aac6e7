"""An agenda that gets work while the sweep goes on, and gives back work that has not begun."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from tuner.fleet.messages import Item
from tuner.problem import Problem
from tuner.problem.family import Family
from tuner.store.records import Winner
from tuner.sweep.agenda import Agenda
from tuner.sweep.ladder import Result
from tuner.sweep.many_rows import Estimate


class Feed(Agenda):
    """The work of one node; it begins a piece only when the sweep has nothing else to begin.

    Attributes:
        begun, over: work that has begun, or ended and is written; another thread empties them.
    """

    def __init__(self, estimate: Estimate) -> None:
        """Begin empty and open."""
        super().__init__((), (), estimate)
        self.begun: deque[Item] = deque()
        self.over: deque[Item] = deque()
        self._ended: list[Item] = []
        self._waiting: deque[Item] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def __bool__(self) -> bool:
        """Whether a step can be taken now; where none is left, the next piece of work is begun first."""
        with self._lock:
            while not self._steps and self._waiting:
                item = self._waiting.popleft()
                self.begun.append(item)
                self.add(item)
        return bool(self._steps)

    @property
    def is_open(self) -> bool:
        """Whether more work may come."""
        return not self._closed or bool(self._waiting)

    def offer(self, items: Iterable[Item]) -> None:
        """Take on work, from another thread."""
        with self._lock:
            self._waiting.extend(items)

    def give_back(self, items: Iterable[Item]) -> list[Item]:
        """Return those of these items that have not begun; they are no longer this node's."""
        with self._lock:
            given = [item for item in items if item in self._waiting]
            for item in given:
                self._waiting.remove(item)
        return given

    def close(self) -> None:
        """Say that no more work will come."""
        self._closed = True

    def drop(self) -> list[Problem]:
        """Give up what was not begun, and take nothing more."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
        return super().drop()

    def ended(self, problem: Problem, result: Result, winners: Iterable[Winner]) -> list[Family]:
        """See `Agenda.ended`; also notes what is over by it, for `written` to tell the driver."""
        awaited, is_listed = self._awaiting.get(problem, []), problem in self._listed
        complete = super().ended(problem, result, winners)
        pending = {id(progress) for each in self._awaiting.values() for progress in each}
        self._ended += [progress.ladder for progress in awaited if id(progress) not in pending]
        self._ended += [problem] if is_listed else []
        return complete

    def written(self) -> None:
        """Tell the driver that what has ended is over: no node begins it any more."""
        self.over.extend(self._ended)
        self._ended.clear()
