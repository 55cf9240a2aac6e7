"""Where the wall time of a problem goes."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Adds up wall time by phase, one phase at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent: dict[str, float] = {}
        self._phase = ""
        self._since = 0.0

    def enter(self, phase: str) -> None:
        """A phase begins, or goes on; "" for none."""
        now = self._clock()
        if self._phase:
            self._spent[self._phase] = self._spent.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    @property
    def phases_s(self) -> dict[str, float]:
        """Seconds of each phase, in the order they were first entered."""
        if not self._phase:
            return dict(self._spent)
        return {**self._spent, self._phase: self._spent.get(self._phase, 0.0) + self._clock() - self._since}

    @property
    def seconds(self) -> float:
        """All phases together."""
        return sum(self.phases_s.values())
