"""Look a problem's config up: in under a microsecond once it was asked for, and without measuring, compiling or
writing anything ever.

What a problem gets is decided by the rules (rules.py); here are the sources, the answers kept, and the lock.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner import device as devices
from tuner import entries, keyed, registry
from tuner.device import Device
from tuner.problem import Problem
from tuner.runtime import rules
from tuner.runtime.decision import Decision, Match
from tuner.runtime.row import Row
from tuner.runtime.shelf import Shelf

if TYPE_CHECKING:
    from tuner.runtime.sources import Source
    from tuner.runtime.tally import Tally

MEMO_LIMIT = 65_536
"""Answers kept, 2.5 KB each with the row (benchmarks/results/loading.json): M may take every value in a server."""
TUNED = ("exact", "near_m")
"""Rules whose answer is no miss: what was tuned for this very M, or one within the distance that costs little."""
_log = logging.getLogger(__name__)


def lookup(problem: Problem, device: Device | None = None) -> Match:
    """The config to use for a problem: an exact one, a neighbour's, or the default formula's.

    Args:
        problem: what is to be computed.
        device: the GPU model to look up for; None is this process's own, found once.

    Returns:
        The match. Asked again, it is the same object.

    Raises:
        DeviceError: no device was given and this process has none.
        KernelError: no installed kernel serves the problem on the device.
    """
    try:
        return _desk.own[problem] if device is None else _desk.answers[device.slug][problem]
    except KeyError:
        return _desk.answer(problem, device)


def use(where: str | Path | None) -> None:
    """Ask a table, a folder of tables or a SQLite database before every other source; the latest named is asked first.

    Args:
        where: a path. None forgets all that was named and everything that was read: the next lookup reads afresh.

    Raises:
        TableError: it cannot be read. The sources stay as they were.
    """
    global _desk  # noqa: PLW0603  one assignment swaps sources and answers together: no reader sees half of it
    if where is None:
        entries.forget()
        source = None
    else:
        from tuner.runtime import sources

        source = sources.named(where)
    with _lock:
        _desk = Desk(()) if source is None else Desk((source, *_desk.named))
    for forget in _on_change:
        forget()


def record_misses(where: str | Path | None) -> None:
    """Count from here on the calls of problems that nobody tuned, for a file that `tuner run --from-misses` reads.

    The file is written at the end of the process and by `tuner.flush_misses()`; what it holds is added to. Calls of
    tuned problems cost nothing more. `$TUNER_MISSES` does the same from a process's first miss on.

    Args:
        where: the file, made when missing. None ends it.

    Raises:
        TableError: the file cannot be a record of misses, or the one of before cannot be written.
    """
    global _desk  # noqa: PLW0603
    from tuner.runtime import tally

    tally.start(where)
    with _lock:
        _desk = Desk(_desk.named)  # answers and plans of before count nothing
    for forget in _on_change:
        forget()


def row_of(problem: Problem, device: Device) -> Row | None:
    """The row that serves a problem, measured for this very one; None where a neighbour's or the formula does.

    Decides anew at each call: for what is asked once.

    Raises:
        KernelError: see `lookup`.
    """
    decision = desk().decide(problem, device)
    return decision.row if decision.match.rule == "exact" else None


def counter(problem: Problem, device: Device) -> Callable[[], Any] | None:
    """What counts a call that goes past `lookup`; None unless its problem is missed and misses are recorded."""
    missed = _desk.missed.get((device.slug, problem))
    return None if missed is None else missed.tally.count


def on_change(forget: Callable[[], Any]) -> None:
    """Have something called each time that answers given before no longer hold."""
    _on_change.append(forget)


def drop(problem: Problem, device: Device | None, match: Match, reason: str) -> Match:
    """Use a match no more in this process, because it cannot be launched; returns what serves in its place.

    One warning says so. A match of rule "default" cannot be dropped.

    Args:
        problem, device: what `match` was looked up for.
        match: the answer that failed.
        reason: what happened.

    Raises:
        KernelError: see `lookup`.
    """
    where = device or desk().here()
    with _lock:
        rules.failed[where.slug, problem, match.config] = reason
        _desk.answers.get(where.slug, {}).pop(problem, None)
        _desk.missed.pop((where.slug, problem), None)
    return lookup(problem, device)


def command(problem: Problem) -> str:
    """What to type to have a problem tuned."""
    from tuner.suite import OTHER_OPS

    p = problem
    if p.is_keyed:
        origin = next((spec.origin for spec in registry.of(p.op).values() if spec.origin), p.op)
        return f"tuner run --kernel {origin} --problem {keyed.typed(p)}"
    if p.op != "matmul" and not dict(p.extras).keys() <= set(OTHER_OPS):
        return f"no command tunes op {p.op!r} with {', '.join(name for name, _ in p.extras)}; tuner.sweep does"
    if p == Problem(*p.shape, dtype=p.a_dtype, layout=p.layout, scaling=p.scaling):
        scaling = "" if p.scaling == "none" else f" --scaling {p.scaling}"
        return f"tuner run --shape {p.m}x{p.n}x{p.k} --dtype {p.a_dtype} --layout {p.layout}{scaling}"
    names = ["m", "n", "k", "a_dtype", "b_dtype", "out_dtype", "layout", "epilogue", "precision", "aligned"]
    fields = p.fields() | dict(p.extras)
    names += [*([] if p.op == "matmul" else ["op"]), *(name for name, _ in p.extras)]
    values = ",".join(str(fields[name]).lower() for name in names)
    header = ",".join(["dtype", *names])
    return f"printf '{header}\\n{p.a_dtype},{values}\\n' > missed.csv && tuner run --suite missed.csv"


@dataclass(frozen=True, slots=True)
class Missed:
    """The answer for a problem whose calls are counted."""

    match: Match
    tally: Tally

    def called(self) -> Match:
        """The answer to one more call."""
        self.tally.count()
        return self.match


class Desk:
    """The sources, what they hold for each device that was asked about, and the answers given.

    A hit is one dict access, without a lock. Sources are read and answers given under one lock, so that threads that
    ask first at the same time read every source once and log every miss once. Between the two no lock is held: there
    kernels are imported, and an import may wait for another thread's, which may look something up.
    """

    def __init__(self, named: tuple[Source, ...]) -> None:
        """Nothing is read yet.

        Args:
            named: what `use` named, the latest first.

        Attributes:
            answers: by the device's slug, then by problem.
            own: those of this process's device, once it is known.
            missed: answers whose calls are counted.
        """
        self.named = named
        self.answers: dict[str, dict[Problem, Match]] = {}
        self.own: dict[Problem, Match] = {}
        self.missed: dict[tuple[str, Problem], Missed] = {}
        self._here: Device | None = None
        self._sources: list[Source] | None = None
        self._shelves: dict[tuple[str, int], Shelf] = {}
        self._relatives: dict[tuple[str, int], list[tuple[int, Shelf]]] = {}

    def answer(self, problem: Problem, device: Device | None) -> Match:
        """Decide, keep and return; a miss and a refused row are logged, and the calls of a miss counted."""
        device = device or self._here or self.here()
        if (missed := self.missed.get((device.slug, problem))) is not None:
            return missed.called()
        while True:
            decision = self.decide(problem, device)
            with _lock:
                if (match := self.answers.get(device.slug, {}).get(problem)) is not None:
                    return match  # another thread came first, or it was asked for by the device's name
                if (missed := self.missed.get((device.slug, problem))) is not None:
                    return missed.called()
                if decision.row and (device.slug, problem, decision.row.config) in rules.failed:  # dropped meanwhile
                    continue
                _report(problem, device, decision)
                return self._keep(problem, device, decision.match)

    def _keep(self, problem: Problem, device: Device, match: Match) -> Match:
        counted = None if match.rule in TUNED else _tally_of(problem, device, match)
        if counted is None:
            if sum(map(len, self.answers.values())) >= MEMO_LIMIT:
                for known in self.answers.values():
                    known.clear()
            self.answers.setdefault(device.slug, {})[problem] = match
            return match
        if len(self.missed) >= MEMO_LIMIT:
            self.missed.clear()
        missed = self.missed[device.slug, problem] = Missed(match, counted)
        return missed.called()

    def explanation(self, problem: Problem, device: Device | None) -> tuple[Device, list[Shelf], Decision]:
        """All that an answer rests on; reads every source."""
        device = device or self.here()
        return device, list(_Shelves(self, device.slug)), self.decide(problem, device)

    def shelves(self, device: Device) -> Iterator[tuple[int, Shelf]]:
        """All that is held for a device, then for others of its architecture; each after its multiprocessors."""
        yield from ((device.sm_count, shelf) for shelf in _Shelves(self, device.slug))
        yield from _Relatives(self, device)

    def decide(self, problem: Problem, device: Device) -> Decision:
        """The decision about a problem, from these sources; nothing is kept."""
        return rules.decide(problem, device, _Shelves(self, device.slug), _Relatives(self, device))

    def here(self) -> Device:
        """This process's device."""
        with _lock:
            if self._here is None:
                self._here = devices.current()
                self.own = self.answers.setdefault(self._here.slug, {})
            return self._here

    def sources(self) -> list[Source]:
        """All sources in the order they are asked."""
        with _lock:
            if self._sources is None:
                from tuner.runtime import sources

                self._sources = [*self.named, *sources.standing()]
            return self._sources

    def shelf(self, index: int, slug: str) -> Shelf:
        """What a source holds for a device; read once."""
        key = (slug, index)
        with _lock:
            if key not in self._shelves:
                self._shelves[key] = self.sources()[index].shelf(slug)
            return self._shelves[key]

    def relatives(self, index: int, device: Device) -> list[tuple[int, Shelf]]:
        """What a source holds for other devices of the architecture, with their multiprocessors; found once."""
        key = (device.slug, index)
        with _lock:
            if key not in self._relatives:
                found = devices.of_one_arch(device, self.sources()[index].slugs())
                self._relatives[key] = [(sm_count, self.shelf(index, slug)) for slug, sm_count in found]
            return self._relatives[key]


@dataclass(frozen=True, slots=True)
class _Shelves:
    """A desk's shelves for a device, each read when it is come to: a hit in the first source reads no other."""

    desk: Desk
    slug: str

    def __iter__(self) -> Iterator[Shelf]:
        return (self.desk.shelf(index, self.slug) for index in range(len(self.desk.sources())))


@dataclass(frozen=True, slots=True)
class _Relatives:
    """What a desk's sources hold for other GPU models of a device's architecture, read when it is come to."""

    desk: Desk
    device: Device

    def __iter__(self) -> Iterator[tuple[int, Shelf]]:
        for index in range(len(self.desk.sources())):
            yield from self.desk.relatives(index, self.device)


def _tally_of(problem: Problem, device: Device, match: Match) -> Tally | None:
    from tuner.runtime import tally

    return tally.tally_of(problem, device.slug, match.rule, rules.triton_version())


def desk() -> Desk:
    """The desk of this moment; `use` puts another in its place."""
    return _desk


def _report(problem: Problem, device: Device, decision: Decision) -> None:
    match = decision.match
    # That a neighbour's config does not fit another problem is no fault of its row: `tuner.explain` tells.
    own = [r for r in decision.refused if r.rule == "exact"]
    refused = "".join(f"; refused {r.row.config} from {r.source}: {r.reason}" for r in own[:3])
    if match.rule == "default":
        _log.warning(
            "no tuned config for %s on %s%s: using the default formula's, %s. Performance may be below what tuning "
            "finds; to tune it: %s",
            *(problem, device.slug, refused, match.config, command(problem)),
        )
    elif match.rule == "near_key":
        assert decision.row is not None
        _log.warning(
            "no tuned config for %s on %s%s: using that of %s, %s. Performance may be below what tuning finds; to tune "
            "it: %s",
            *(problem, device.slug, refused, decision.row.problem, match.config, command(problem)),
        )
    elif refused:
        _log.warning("%s on %s%s: using %s (%s)", problem, device.slug, refused, match.config, match.rule)


_lock = threading.RLock()  # re-entrant: a kernel's formula may itself look something up
_desk = Desk(())
_on_change: list[Callable[[], Any]] = []


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # where processes fork
    # A child forked while another thread of the parent held the lock would wait for that thread for ever.
    os.register_at_fork(after_in_child=_renew_lock)
