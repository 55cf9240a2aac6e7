"""What a run does during an outage of its server: it keeps its trials in a file, goes on, and tries again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tuner.store.engine import UnavailableError
from tuner.store.records import Trial
from tuner.store.runs import ABSENCE_S
from tuner.store.spool import Spool, Timed

T = TypeVar("T")

LIMIT_S = ABSENCE_S
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
_log = logging.getLogger(__name__)


class OutageBuffer:
    """Carries the writes and reads of one run through outages of its server.

    Trials never wait: they go to the spool, and from there to the database as soon as it takes them. Everything else
    waits for the server, and sees the trials that came before it. `store` gets trials which it may have had already,
    since nobody knows what became of a commit whose answer did not come.
    """

    def __init__(
        self, spool: Spool, label: str, store: Callable[[Sequence[Timed]], None], stop: threading.Event
    ) -> None:
        """Begin with a server that answers. Once `stop` is set nothing waits for it."""
        self._spool, self._label, self._store, self._stop = spool, label, store, stop
        self._pause_s = 0.0
        self._next_try = 0.0
        self.given_up = False

    @property
    def is_away(self) -> bool:
        """Whether the server did not answer when it was last asked."""
        return self._pause_s > 0

    def keep(self, trials: Sequence[Trial]) -> None:
        """Add trials to the spool, and store all of them in the database if it answers."""
        self._spool.add(trials)
        if time.monotonic() >= self._next_try:
            try:
                self._flush()
            except UnavailableError:
                self._missed()

    def wait(self, operation: Callable[[], T]) -> T:
        """Do an operation, and try again until the server has done it.

        Raises:
            StoreError: it cannot be done, or the server has been away for too long.
            KeyboardInterrupt: `stop` was set while the server is away.
        """
        begun = time.monotonic()
        while True:
            try:
                self._flush()
                done = operation()
            except UnavailableError as e:
                self._missed()
                if self.given_up or time.monotonic() + self._pause_s - begun > LIMIT_S:
                    self.given_up = True  # no later operation waits either
                    raise
                if self._stop.wait(self._pause_s):
                    raise KeyboardInterrupt from e
            else:
                self._answered()
                return done

    def close(self) -> None:
        """Leave to the next command what the database did not take, and say so, and what is lost."""
        self._spool.add(())  # there may be room again for what the file does not hold
        lost = self._spool.in_memory
        if kept := len(self._spool.pending) - lost:
            _log.warning(
                "%s: %s kept in %s: the next command on this database stores what is there",
                self._label,
                _trials(kept),
                self._spool.path,
            )
        if lost:
            _log.warning(
                "%s: %s lost: neither it nor %s could be written", self._label, _trials(lost), self._spool.path
            )
        self._spool.close()

    def _flush(self) -> None:
        if self._spool.pending:
            self._store(self._spool.pending)
            self._answered()
            self._spool.stored()

    def _missed(self) -> None:
        if not self._pause_s and not self.given_up:
            where = "memory" if self._spool.in_memory else self._spool.path
            kept = f"{_trials(len(self._spool.pending))} kept in {where}, " if self._spool.pending else ""
            _log.warning("%s: the database does not answer, %strying again", self._label, kept)
        self._spool.durable = True
        self._pause_s = min(2 * self._pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._next_try = time.monotonic() + self._pause_s

    def _answered(self) -> None:
        if self._pause_s:
            stored = f", {_trials(len(self._spool.pending))} stored" if self._spool.pending else ""
            _log.warning("%s: the database answers again%s", self._label, stored)
        self._pause_s = self._next_try = 0.0


def _trials(count: int) -> str:
    return f"{count} trial{'s' * (count != 1)}"
