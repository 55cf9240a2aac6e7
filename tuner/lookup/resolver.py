"""The sources of lookups, what they hold, the answers given, and the lock around them."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from tuner.errors import ProblemError
from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.lookup import advice, match_rules
from tuner.lookup.decision import TUNED, Decision, Match
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.row import BAD_VALUE, Row
from tuner.problem import Problem
from tuner.problem.batches import Key, split
from tuner.problem.family import Range

if TYPE_CHECKING:
    from tuner.lookup.miss_counts import MissCounter
    from tuner.lookup.sources import Source

T = TypeVar("T")
MEMO_LIMIT = 65_536
"""Answers kept, 2.5 KB each with the row (benchmarks/results/loading.json): M may take every value in a server."""


@dataclass(frozen=True, slots=True)
class Missed:
    """The answer for a problem whose calls are counted."""

    match: Match
    counter: MissCounter

    def called(self) -> Match:
        """Count one more call, and answer it."""
        self.counter.count()
        return self.match


class Resolver:
    """The sources, what they hold for each device that was asked about, and the answers given.

    A hit is one dict access, without a lock. Sources are read and answers given under one lock, so that threads that
    ask first at the same time read every source once and log every miss once. No lock is held while the match rules
    decide: they import kernels, and an import may wait for another thread's, which may look something up.

    Attributes:
        lock: re-entrant, because a kernel's formula may itself look something up. Take it from the class each time: a
            forked child gets another one.
        named: what `use` named, the latest first.
        answers: by the device's slug, then by problem.
        own: those of this process's device, once it is known.
        missed: answers whose calls are counted.
    """

    lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, named: tuple[Source, ...]) -> None:
        """Begin with nothing read and nothing answered."""
        self.named = named
        self.answers: dict[str, dict[Problem, Match]] = {}
        self.own: dict[Problem, Match] = {}
        self.missed: dict[tuple[str, Problem], Missed] = {}
        self._reported: set[Hashable] = set()
        self._here: Device | None = None
        self._by_name: dict[str, Device] = {}
        self._sources: list[Source] | None = None
        self._winners: dict[tuple[str, int], DeviceWinners] = {}
        self._relatives: dict[tuple[str, int], list[DeviceWinners]] = {}
        self._ranges: dict[tuple[str, Key], AnsweredRanges] = {}
        self._foreseen: dict[tuple[str, Key], list[Decision]] = {}
        self._runs: dict[tuple[str, Key, Config], set[int]] = {}
        self._batches: dict[tuple[str, Key], tuple[list[int], list[AnsweredRanges]]] = {}

    def answer(self, problem: Problem, device: Device | str | None) -> Match:
        """Decide, keep and return the answer; log a miss and a refused row, and count the calls of a miss.

        A new M of a range that was answered before gets the same answer: nothing is decided or logged again.
        """
        _expect(problem)
        device = self.device(device)
        if (missed := self.missed.get((device.slug, problem))) is not None:
            return missed.called()
        with Resolver.lock:
            if (known := self._answered(problem, device)) is not None:
                if known[0].rule == "default":
                    advice.count_another()
                return self._keep(problem, device, *known)
        while True:
            decision = self._expected(problem, device) or self.decide(problem, device)
            with Resolver.lock:
                if (match := self.answers.get(device.slug, {}).get(problem)) is not None:
                    return match  # another thread came first, or it was asked for by the device's name
                if (missed := self.missed.get((device.slug, problem))) is not None:
                    return missed.called()
                if (device.slug, problem, decision.match.config) in match_rules.failed:  # dropped meanwhile
                    continue
                advice.report(problem, device, decision, self._reported)
                counter = None if decision.match.rule in TUNED else _miss_counter(problem, device, decision)
                if not problem.is_keyed and decision.match.rule != "exact":
                    # Other answers are for this batch alone: the formula's config hangs on it.
                    of_family = decision.match.rule == "family"
                    ranges = self._shared(problem, device.slug) if of_family else None
                    ranges = ranges or self._ranges.setdefault((device.slug, problem.family), AnsweredRanges())
                    ranges.add(decision.ms, decision.match, counter)
                return self._keep(problem, device, decision.match, counter)

    def report_no_binary(self, problem: Problem, device: Device, match: Match, instead: str) -> None:
        """Log, once a family, that no shipped binary launches an answer, and what serves instead."""
        with Resolver.lock:
            advice.report_no_binary(problem, device, match, instead, self._reported)

    def _answered(self, problem: Problem, device: Device) -> tuple[Match, MissCounter | None] | None:
        """The answer for the range of Ms that holds this one, and what counts its misses.

        None where that is not known yet, where a row is exact, and where the config could not be launched.
        """
        known, (key, batch) = None, split(problem)
        if batch and (cut := self._batches.get((device.slug, key))) is not None:
            known = cut[1][bisect_left(cut[0], batch)].at(problem.m)
        if known is None and (ranges := self._ranges.get((device.slug, problem.family))) is not None:
            known = ranges.at(problem.m)
        return known if known is not None and self._holds(known[0], problem, device) else None

    def _holds(self, match: Match, problem: Problem, device: Device) -> bool:
        """Whether the answer for a range of Ms is that for one of them."""
        if match_rules.failed and (device.slug, problem, match.config) in match_rules.failed:
            return False
        for winners in self._by_source(device.slug):
            if winners.is_last and match.rule in TUNED and match.source != winners.source:
                break  # its rows come after this range
            if problem in winners.rows:
                return False
        if match.rule in TUNED:
            return True
        if any(problem in winners.rows for winners in self._of_relatives(device)):
            return False
        if match.rule != "default" or problem.m in self._runs.get((device.slug, problem.family, match.config), ()):
            return True
        return match_rules.can_run(match.config, problem, device)

    def defaults_up_to(self, problem: Problem, device: Device, most_m: int) -> Iterator[tuple[range, Match]]:
        """See `lookup.foresee`. A range whose answer does not suit its first M is left to its own calls.

        At which Ms an answer can run is found out here too: no later call asks the kernel's rules.
        """
        m = 1
        while m <= most_m:
            last, match = self._known_or_foreseen(problem.with_m(m), device) or (m, None)
            if match is not None and match.rule == "default":
                ms = range(m, min(last, most_m) + 1)
                runs = {each for each in ms if match_rules.can_run(match.config, problem.with_m(each), device)}
                self._runs.setdefault((device.slug, problem.family, match.config), set()).update(runs)
                yield ms, match
            is_tuned = match is not None and match.rule != "default"
            m = 1 + (last if is_tuned or last > m else match_rules.default_range(m)[1])

    def _known_or_foreseen(self, problem: Problem, device: Device) -> tuple[int, Match] | None:
        """The last M of the range that holds a problem's, and its answer; None where no kernel serves it."""
        with Resolver.lock:
            ranges = self._ranges.get((device.slug, problem.family))
            if ranges is not None and (known := ranges.at(problem.m)) is not None:
                return ranges.last(problem.m), known[0]
        decision = self._expected(problem, device)
        if decision is None:
            try:
                decision = self.decide(problem, device)
            except BAD_VALUE:
                return None
            if decision.match.rule == "default":
                self._foreseen.setdefault((device.slug, problem.family), []).append(decision)
        return decision.ms[1], decision.match

    def _expected(self, problem: Problem, device: Device) -> Decision | None:
        """What was decided ahead about the range of Ms that holds a problem's."""
        for decision in self._foreseen.get((device.slug, problem.family), ()):
            if decision.ms[0] <= problem.m <= decision.ms[1] and self._holds(decision.match, problem, device):
                return decision
        return None

    def _shared(self, problem: Problem, slug: str) -> AnsweredRanges | None:
        """The answers of problems that differ in M, and in batches that every source serves by the same rows."""
        key, batch = split(problem)
        if not batch:
            return None
        if (slug, key) not in self._batches:
            held = [tuned for winners in self._by_source(slug) if (tuned := winners.families.get(key))]
            lasts = sorted({last for tuned in held for last in tuned.last_of_each()})
            self._batches[slug, key] = lasts, [AnsweredRanges() for _ in range(len(lasts) + 1)]
        lasts, answered = self._batches[slug, key]
        return answered[bisect_left(lasts, batch)]

    def _keep(self, problem: Problem, device: Device, match: Match, counter: MissCounter | None) -> Match:
        for kept in (self._ranges, self._foreseen, self._runs, self._batches, self._reported):
            if len(kept) >= MEMO_LIMIT:  # every length of a growing cache may be a family of its own
                kept.clear()
        if counter is None:
            answers = self.answers.setdefault(device.slug, {})
            if len(answers) >= MEMO_LIMIT:
                answers.clear()
            answers[problem] = match
            return match
        if len(self.missed) >= MEMO_LIMIT:
            self.missed.clear()
        missed = self.missed[device.slug, problem] = Missed(match, counter)
        return missed.called()

    def explanation(
        self, problem: Problem, device: Device | str | None
    ) -> tuple[Device, list[DeviceWinners], Decision]:
        """The device, what every source holds for it, and the decision; reads every source."""
        _expect(problem)
        device = self.device(device)
        return device, list(self._by_source(device.slug)), self.decide(problem, device)

    def own_winners(self, device: Device) -> Iterator[DeviceWinners]:
        """What each source holds for a device, read when its turn comes."""
        return self._by_source(device.slug)

    def winners(self, device: Device) -> Iterator[DeviceWinners]:
        """What sources hold for a device and then for others of its architecture."""
        yield from self._by_source(device.slug)
        yield from self._of_relatives(device)

    def ranges_of_family(self, problem: Problem, device: Device, match: Match) -> Iterator[tuple[Range, Row]]:
        """The ranges of a problem's family with their rows, in the source that gave an answer and before it."""
        key, batch = split(problem)
        for winners in self._by_source(device.slug):
            tuned = winners.families.get(key)
            if (family := tuned.at(batch) if tuned else None) is not None:
                for place, each in enumerate(family.ranges):
                    yield from ((each, row) for row in winners.rows.get(family.row(place), ()))
            if winners.source == match.source:
                break  # what no lookup has read so far stays unread

    def decide(self, problem: Problem, device: Device) -> Decision:
        """The decision about a problem, from these sources; nothing is kept."""
        own, others = partial(self._by_source, device.slug), partial(self._of_relatives, device)
        return match_rules.decide(problem, device, _Repeatable(own), _Repeatable(others))

    def device(self, given: Device | str | None) -> Device:
        """A device itself, the one of a slug or name, or this process's for None."""
        if given is None:
            return self._here or self.here()
        if isinstance(given, Device):
            return given
        if (known := self._by_name.get(given)) is None:
            from tuner.lookup import device_names

            known = self._by_name[given] = device_names.named(given, self.sources())
        return known

    def here(self) -> Device:
        """This process's device."""
        with Resolver.lock:
            if self._here is None:
                self._here = devices.current()
                self.own = self.answers.setdefault(self._here.slug, {})
            return self._here

    def sources(self) -> list[Source]:
        """All sources in the order they are asked."""
        with Resolver.lock:
            if self._sources is None:
                from tuner.lookup import sources

                self._sources = [*self.named, *sources.default_sources()]
            return self._sources

    def _by_source(self, slug: str) -> Iterator[DeviceWinners]:
        """What each source holds for a device, read when its turn comes: a hit in the first source reads no other."""
        return (self._read(index, slug) for index in range(len(self.sources())))

    def _read(self, index: int, slug: str) -> DeviceWinners:
        """What a source holds for a device; read once."""
        with Resolver.lock:
            if (slug, index) not in self._winners:
                self._winners[slug, index] = replace(self.sources()[index].winners(slug), device=slug)
            return self._winners[slug, index]

    def _of_relatives(self, device: Device) -> Iterator[DeviceWinners]:
        """What each source holds for other devices of an architecture, in its turn."""
        for index, source in enumerate(self.sources()):
            with Resolver.lock:
                if (device.slug, index) not in self._relatives:
                    found = devices.of_one_arch(device, source.slugs())
                    self._relatives[device.slug, index] = [self._read(index, slug) for slug in found]
            yield from self._relatives[device.slug, index]


class AnsweredRanges:
    """The ranges of a family's Ms whose answer is known, ascending and disjoint."""

    __slots__ = ("_known", "_last_ms")

    def __init__(self) -> None:
        self._last_ms: list[int] = []
        self._known: list[tuple[int, tuple[Match, MissCounter | None]]] = []

    def at(self, m: int) -> tuple[Match, MissCounter | None] | None:
        """The answer for an M, and what counts its misses; None where none is known."""
        place = bisect_left(self._last_ms, m)
        if place == len(self._last_ms):
            return None
        first, known = self._known[place]
        return known if first <= m else None

    def last(self, m: int) -> int:
        """The last M of the range that holds an M whose answer is known."""
        return self._last_ms[bisect_left(self._last_ms, m)]

    def add(self, ms: tuple[int, int], match: Match, counter: MissCounter | None) -> None:
        """Note the answer for a range; one that holds an M of a range noted before is left out."""
        first, last = ms
        place = bisect_left(self._last_ms, first)
        if place == len(self._last_ms) or last < self._known[place][0]:
            self._known.insert(place, (first, (match, counter)))
            self._last_ms.insert(place, last)


@dataclass(frozen=True, slots=True)
class _Repeatable(Generic[T], Iterable[T]):
    """A generator that starts anew each time it is gone through."""

    start: Callable[[], Iterator[T]]

    def __iter__(self) -> Iterator[T]:
        return self.start()


def _expect(problem: object) -> None:
    if not isinstance(problem, Problem):
        raise ProblemError(
            f"not a problem: {problem!r:.60}: expected a tuner.Problem, for instance Problem(64, 64, 64)"
        )


def _miss_counter(problem: Problem, device: Device, decision: Decision) -> MissCounter | None:
    from tuner.lookup import miss_counts

    ms = (problem.m, problem.m) if problem.is_keyed else decision.ms
    return miss_counts.counter_of(problem, ms, device.slug, decision.match.rule, devices.triton_version())


def _renew_lock() -> None:
    Resolver.lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # where processes fork
    # A child forked while another thread of the parent held the lock would wait for that thread for ever.
    os.register_at_fork(after_in_child=_renew_lock)
