"""The sources of lookups, what they hold, the answers given, and the lock around them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.lookup import advice, match_rules
from tuner.lookup.decision import Decision, Match
from tuner.lookup.device_winners import DeviceWinners
from tuner.problem import Problem

if TYPE_CHECKING:
    from tuner.lookup.miss_counts import MissCounter
    from tuner.lookup.sources import Source

T = TypeVar("T")
MEMO_LIMIT = 65_536
"""Answers kept, 2.5 KB each with the row (benchmarks/results/loading.json): M may take every value in a server."""
TUNED = ("exact", "near_m")
"""Match rules whose answer is no miss: what was tuned for this very M, or within the distance that costs little."""


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
        self._sources: list[Source] | None = None
        self._winners: dict[tuple[str, int], DeviceWinners] = {}
        self._relatives: dict[tuple[str, int], list[tuple[int, DeviceWinners]]] = {}

    def answer(self, problem: Problem, device: Device | str | None) -> Match:
        """Decide, keep and return the answer; log a miss and a refused row, and count the calls of a miss."""
        device = self.device(device)
        if (missed := self.missed.get((device.slug, problem))) is not None:
            return missed.called()
        while True:
            decision = self.decide(problem, device)
            with Resolver.lock:
                if (match := self.answers.get(device.slug, {}).get(problem)) is not None:
                    return match  # another thread came first, or it was asked for by the device's name
                if (missed := self.missed.get((device.slug, problem))) is not None:
                    return missed.called()
                if (device.slug, problem, decision.match.config) in match_rules.failed:  # dropped meanwhile
                    continue
                advice.report(problem, device, decision, self._reported)
                return self._keep(problem, device, decision.match)

    def _keep(self, problem: Problem, device: Device, match: Match) -> Match:
        counter = None if match.rule in TUNED else _miss_counter(problem, device, match)
        if counter is None:
            if sum(map(len, self.answers.values())) >= MEMO_LIMIT:
                for known in self.answers.values():
                    known.clear()
            self.answers.setdefault(device.slug, {})[problem] = match
            return match
        if len(self.missed) >= MEMO_LIMIT:
            self.missed.clear()
        missed = self.missed[device.slug, problem] = Missed(match, counter)
        return missed.called()

    def explanation(
        self, problem: Problem, device: Device | str | None
    ) -> tuple[Device, list[DeviceWinners], Decision]:
        """The device, what every source holds for it, and the decision; reads every source."""
        device = self.device(device)
        return device, list(self._by_source(device.slug)), self.decide(problem, device)

    def winners(self, device: Device) -> Iterator[tuple[int, DeviceWinners]]:
        """What sources hold for a device and then for others of its architecture, with their multiprocessors."""
        yield from ((device.sm_count, winners) for winners in self._by_source(device.slug))
        yield from self._of_relatives(device)

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
        from tuner.lookup import device_names

        return device_names.named(given, self.sources())

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
                self._winners[slug, index] = self.sources()[index].winners(slug)
            return self._winners[slug, index]

    def _of_relatives(self, device: Device) -> Iterator[tuple[int, DeviceWinners]]:
        """What each source holds for other devices of an architecture, with their multiprocessors, in its turn."""
        for index, source in enumerate(self.sources()):
            with Resolver.lock:
                if (device.slug, index) not in self._relatives:
                    found = devices.of_one_arch(device, source.slugs())
                    known = [(sm_count, self._read(index, slug)) for slug, sm_count in found]
                    self._relatives[device.slug, index] = known
            yield from self._relatives[device.slug, index]


@dataclass(frozen=True, slots=True)
class _Repeatable(Generic[T], Iterable[T]):
    """A generator that starts anew each time it is gone through."""

    start: Callable[[], Iterator[T]]

    def __iter__(self) -> Iterator[T]:
        return self.start()


def _miss_counter(problem: Problem, device: Device, match: Match) -> MissCounter | None:
    from tuner.lookup import miss_counts

    return miss_counts.counter_of(problem, device.slug, match.rule, devices.triton_version())


def _renew_lock() -> None:
    Resolver.lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # where processes fork
    # A child forked while another thread of the parent held the lock would wait for that thread for ever.
    os.register_at_fork(after_in_child=_renew_lock)
