"""Look a problem's config up: in under a microsecond once it was asked for, and without measuring, compiling or
writing anything ever.

Rules are tried in order, each over all sources in their order, so that what was measured for this very problem beats
a neighbour's config wherever it lies (docs/lookup.md).
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import device as devices
from tuner import registry
from tuner.config import Config
from tuner.device import Device
from tuner.errors import KernelError
from tuner.problem import Problem
from tuner.runtime import sources, tally
from tuner.runtime.row import BAD_VALUE, Row
from tuner.runtime.shelf import Shelf
from tuner.runtime.sources import Source
from tuner.runtime.tally import Tally
from tuner.suite import OTHER_OPS

NEAR_M = 2.0
"""How far the tuned M may be away, as a factor. Within it the best tile height differs by one step at most."""
MEMO_LIMIT = 65_536
"""Answers kept, 0.75 KB each (benchmarks/results/lookup.json): M may take every value in a server."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Match:
    """A lookup's answer.

    Attributes:
        kernel: the kernel's name; `tuner.registry.find(problem.op, kernel)` is its spec.
        config: its meta-parameters.
        rule: "exact", "near_m" (tuned at an M within a factor of 2), or "default" (the kernel's formula).
        source: where the row came from; "formula" for the default.
        grade: "exact" (measured under this Triton), "compatible" (under another), "none" for the default.
    """

    kernel: str
    config: Config
    rule: str
    source: str
    grade: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that a rule offered and that may not be used."""

    source: str
    rule: str
    row: Row
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A match, the row that it came from (None for the default), and what was refused on the way."""

    match: Match
    row: Row | None
    refused: tuple[Refusal, ...]


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
    match = _desk.answers.get(problem if device is None else (device.slug, problem))
    return _desk.answer(problem, device) if match is None else match


def use(where: str | Path | None) -> None:
    """Ask a table, a folder of tables or a SQLite database before every other source; the latest named is asked first.

    Args:
        where: a path. None forgets all that was named and everything that was read: the next lookup reads afresh.

    Raises:
        TableError: it cannot be read. The sources stay as they were.
    """
    global _desk  # noqa: PLW0603  one assignment swaps sources and answers together: no reader sees half of it
    source = None if where is None else sources.named(where)
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
    tally.start(where)
    with _lock:
        _desk = Desk(_desk.named)  # answers and plans of before count nothing
    for forget in _on_change:
        forget()


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
        _failed[where.slug, problem, match.config] = reason
        for kept in (_desk.answers, _desk.missed):
            kept.pop(problem, None)
            kept.pop((where.slug, problem), None)
    return lookup(problem, device)


def decide(problem: Problem, device: Device, shelves: Iterable[Shelf]) -> Decision:
    """Apply the rules, in order, each to all shelves in order.

    Args:
        shelves: may be lazy; gone through once a rule, so it must start anew each time.

    Raises:
        KernelError: no kernel serves the problem.
    """
    refused: list[Refusal] = []
    for rule, candidates in RULES.items():
        for shelf in shelves:
            for row in candidates(shelf, problem):
                reason = refusal(row, problem, device)
                if reason is None:
                    match = Match(row.config.kernel, row.config, rule, shelf.source, grade(row))
                    return Decision(match, row, tuple(refused))
                refused.append(Refusal(shelf.source, rule, row, reason))
    config = registry.default_config(problem, device)
    return Decision(Match(config.kernel, config, "default", "formula", "none"), None, tuple(refused))


def refusal(row: Row, problem: Problem, device: Device) -> str | None:
    """Why a row's config cannot be used for a problem on a device, or None when it can."""
    try:
        if (failed := _failed.get((device.slug, problem, row.config))) is not None:
            raise KernelError(f"failed at its first launch in this process: {failed}")
        spec = registry.find(problem.op, row.config.kernel)
        if spec.version != row.kernel_version:
            return f"stale: measured with version {row.kernel_version} of {spec.name}, here is {spec.version}"
        if (reason := spec.supports(problem, device)) is not None:
            return reason
        space = spec.space(problem, device)
        if odd := space.odd_parameters(row.config):
            return f"{spec.name} takes other parameters: {', '.join(sorted(odd))} missing or unknown"
        return space.rejection(row.config, fatal_only=True)
    except KernelError as e:
        return str(e)
    except BAD_VALUE as e:
        return f"not a config of {row.config.kernel}: {row.config} ({type(e).__name__}: {e})"


def grade(row: Row) -> str:
    """Whether a row was measured under this process's Triton."""
    return "exact" if row.made.environment.triton == _triton_version() else "compatible"


def distance(tuned: Problem, problem: Problem) -> float:
    """How far apart two sizes of M are, in powers of two."""
    return abs(math.log2(tuned.m / problem.m))


def _exact(shelf: Shelf, problem: Problem) -> Iterator[Row]:
    yield from sorted(shelf.rows.get(problem, ()), key=grade, reverse=True)  # "exact" before "compatible"


def _near_m(shelf: Shelf, problem: Problem) -> Iterator[Row]:
    near = [row for row in shelf.groups.get(problem.group(), ()) if row.problem.m != problem.m]
    near = [row for row in near if distance(row.problem, problem) <= math.log2(NEAR_M)]
    # Of two that are equally far the taller: its tile wastes masked rows, a shorter one reads all of B once more.
    yield from sorted(near, key=lambda row: (distance(row.problem, problem), -row.problem.m, grade(row) != "exact"))


RULES: dict[str, Callable[[Shelf, Problem], Iterator[Row]]] = {"exact": _exact, "near_m": _near_m}
"""Rule to the rows it offers, the best first."""


def command(problem: Problem) -> str:
    """What to type to have a problem tuned."""
    p = problem
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
        self.named = named
        self.answers: dict[Problem | tuple[str, Problem], Match] = {}
        self.missed: dict[Problem | tuple[str, Problem], Missed] = {}
        self._here: Device | None = None
        self._sources: list[Source] | None = None
        self._shelves: dict[tuple[str, int], Shelf] = {}

    def answer(self, problem: Problem, device: Device | None) -> Match:
        """Decide, keep and return; a miss and a refused row are logged, and the calls of a miss counted."""
        key = problem if device is None else (device.slug, problem)
        if (missed := self.missed.get(key)) is not None:
            return missed.called()
        device = device or self.here()
        while True:
            decision = decide(problem, device, _Shelves(self, device.slug))
            with _lock:
                if key in self.answers:  # another thread came first
                    return self.answers[key]
                if key in self.missed:
                    return self.missed[key].called()
                if decision.row and (device.slug, problem, decision.row.config) in _failed:  # dropped meanwhile
                    continue
                _report(problem, device, decision)
                return self._keep(key, problem, device, decision.match)

    def _keep(self, key: Problem | tuple[str, Problem], problem: Problem, device: Device, match: Match) -> Match:
        for kept in (self.answers, self.missed):
            if len(kept) >= MEMO_LIMIT:
                kept.clear()
        counted = tally.tally_of(problem, device.slug, match.rule, _triton_version())
        if counted is None:
            self.answers[key] = match
            return match
        self.missed[key] = Missed(match, counted)
        return self.missed[key].called()

    def explanation(self, problem: Problem, device: Device | None) -> tuple[Device, list[Shelf], Decision]:
        """All that an answer rests on; reads every source."""
        device = device or self.here()
        shelves = list(_Shelves(self, device.slug))
        return device, shelves, decide(problem, device, shelves)

    def here(self) -> Device:
        """This process's device."""
        with _lock:
            if self._here is None:
                self._here = devices.current()
            return self._here

    def sources(self) -> list[Source]:
        """All sources in the order they are asked."""
        with _lock:
            if self._sources is None:
                self._sources = [*self.named, *sources.standing()]
            return self._sources

    def shelf(self, index: int, slug: str) -> Shelf:
        """What a source holds for a device; read once."""
        key = (slug, index)
        with _lock:
            if key not in self._shelves:
                self._shelves[key] = self.sources()[index].shelf(slug)
            return self._shelves[key]


@dataclass(frozen=True, slots=True)
class _Shelves:
    """A desk's shelves for a device, each read when it is come to: a hit in the first source reads no other."""

    desk: Desk
    slug: str

    def __iter__(self) -> Iterator[Shelf]:
        return (self.desk.shelf(index, self.slug) for index in range(len(self.desk.sources())))


def desk() -> Desk:
    """The desk of this moment; `use` puts another in its place."""
    return _desk


def _report(problem: Problem, device: Device, decision: Decision) -> None:
    match = decision.match
    refused = "".join(f"; refused {r.row.config} from {r.source}: {r.reason}" for r in decision.refused[:3])
    if match.rule == "default":
        _log.warning(
            "no tuned config for %s on %s%s: using the default formula's, %s. Performance may be below what tuning "
            "finds; to tune it: %s",
            *(problem, device.slug, refused, match.config, command(problem)),
        )
    elif refused:
        _log.warning("%s on %s%s: using %s (%s)", problem, device.slug, refused, match.config, match.rule)


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return ""
    return str(triton.__version__)


_lock = threading.RLock()  # re-entrant: a kernel's formula may itself look something up
_desk = Desk(())
_on_change: list[Callable[[], Any]] = []
_failed: dict[tuple[str, Problem, Config], str] = {}


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # where processes fork
    # A child forked while another thread of the parent held the lock would wait for that thread for ever.
    os.register_at_fork(after_in_child=_renew_lock)
