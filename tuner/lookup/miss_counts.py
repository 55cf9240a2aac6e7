"""How often this process calls what nobody tuned: counters without a lock, written to a file at its end and on demand.

Nothing is counted unless `$TUNER_MISSES` or `tuner.record_misses` names a file. Calls of tuned problems are never
counted: their answers and plans know nothing of this module.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from tuner import files
from tuner.errors import TableError
from tuner.location import expanded
from tuner.lookup import misses
from tuner.lookup.misses import Miss, Record
from tuner.problem import Problem

VARIABLE = "TUNER_MISSES"
_log = logging.getLogger(__name__)


class MissCounter:
    """How often one problem was called.

    Attributes:
        count: counts a call, by one step of a counter in C that threads share without a lock.
    """

    __slots__ = ("_taken", "count")

    def __init__(self) -> None:
        self.count: Callable[[], int] = itertools.count().__next__
        self._taken = 0

    def take(self) -> int:
        """The calls since the last time."""
        drawn = self.count()  # reading the counter moves it on, too
        fresh, self._taken = drawn - self._taken, drawn + 1
        return fresh

    def put_back(self, calls: int) -> None:
        """Undo a `take` whose calls could not be written."""
        self._taken -= calls


class Recorder:
    """The miss counters of a process, and the file that they are added to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._counters: dict[Miss, MissCounter] = {}
        self._others = MissCounter()
        self._lock = threading.RLock()
        self._writing = False

    def counter(self, miss: Miss) -> MissCounter:
        """The counter of a miss. Beyond `misses.MOST` of them all others share one."""
        if len(self._counters) >= misses.MOST:
            return self._counters.get(miss, self._others)
        return self._counters.setdefault(miss, MissCounter())

    def flush(self) -> None:
        """Add the calls since the last time to the file.

        Raises:
            TableError: see `misses.add`. The calls are kept for the next time.
        """
        with self._lock:
            if self._writing:
                return  # a signal's handler flushes in the middle of a flush
            self._writing = True
            taken = [(counter, miss, counter.take()) for miss, counter in list(self._counters.items())]
            others, done = self._others.take(), False
            try:
                calls = {miss: count for _, miss, count in taken if count}
                if calls or others:
                    misses.add(self.path, Record(calls, others))
                done = True
            finally:
                self._writing = False
                if not done:
                    self._others.put_back(others)
                    for counter, _, count in taken:
                        counter.put_back(count)

    def begin_anew(self) -> None:
        """Forget all counts: they belong to the parent process."""
        self._lock, self._writing = threading.RLock(), False
        for counter in (self._others, *self._counters.values()):
            counter.take()


def start(where: str | Path | None) -> None:
    """Count misses from here on, for a file; None ends it. What was counted before goes to the file named before.

    Raises:
        TableError: the file cannot be a record of misses; all is as it was.
    """
    global _recorder, _looked
    try:
        place = None if where is None else expanded(where).absolute()
    except OSError as e:  # the current folder was removed
        raise TableError(f"cannot record misses in {where}: the current folder: {e.strerror}: name a whole path") from e
    recorder = None if place is None else _open(place)
    flush()
    _recorder, _looked = recorder, True
    if recorder is not None:
        _arm()


def path() -> Path | None:
    """The file that misses are recorded in; None where they are not."""
    return None if _recorder is None else _recorder.path


def flush() -> None:
    """Add what was counted to the file; without one, or with nothing new, nothing is done.

    Raises:
        TableError: it cannot be written; the counts are kept for the next time.
    """
    if _recorder is not None:
        _recorder.flush()


def counter_of(problem: Problem, ms: tuple[int, int], slug: str, rule: str, triton: str) -> MissCounter | None:
    """The counter for the calls of a missed problem; None where misses are not recorded.

    Args:
        problem, slug: what was called, and on which device.
        ms: the first and the last M of the calls that are counted together.
        rule, triton: see `Miss`.
    """
    recorder = _current_recorder()
    if recorder is None:
        return None
    from tuner.version import __version__

    first, last = ms
    if first < last:
        problem = problem.with_m(last)
    return recorder.counter(Miss(problem, slug, rule, triton, __version__, first if first < last else None))


def _current_recorder() -> Recorder | None:
    """The recorder. A process's first miss looks whether `$TUNER_MISSES` asks for one."""
    global _looked  # noqa: PLW0603
    if not _looked:
        _looked = True
        if where := os.environ.get(VARIABLE):
            try:
                start(where)
            except TableError as e:
                _log.warning("$%s: misses are not recorded: %s", VARIABLE, e)
    return _recorder


def _open(path: Path) -> Recorder:
    """Check now that the file can be used, rather than at the end of the process."""
    files.check_regular(path, "record of misses", error=TableError)
    if path.is_dir():
        raise TableError(f"{path} is a folder: expected a file for the record of misses, say {path}/misses.json")
    if path.exists():
        misses.load(path, misses.BEGIN_ANEW)
    elif not path.parent.is_dir():
        raise TableError(f"cannot write the record of misses {path}: there is no folder {path.parent}")
    return Recorder(path)


def _arm() -> None:
    global _armed  # noqa: PLW0603
    if not _armed:
        _armed = True
        atexit.register(_flush_at_exit)
        _finalize()


def _flush_at_exit() -> None:
    try:
        flush()
    except TableError as e:
        _log.warning("misses of this process are lost: %s", e)
        if _recorder is not None:
            _recorder.begin_anew()  # another finalizer would say it again


def _in_child() -> None:
    if _recorder is not None:
        _recorder.begin_anew()
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            util.register_after_fork(_recorder, _finalize)  # it empties its list of finalizers first


def _finalize(_: Recorder | None = None) -> None:
    """Write the counts when a forked child of multiprocessing ends, which runs finalizers and no `atexit`."""
    if (util := sys.modules.get("multiprocessing.util")) is not None:
        util.Finalize(None, _flush_at_exit, exitpriority=0)


_recorder: Recorder | None = None
_looked = False
_armed = False
if hasattr(os, "register_at_fork"):  # where processes fork
    os.register_at_fork(after_in_child=_in_child)
