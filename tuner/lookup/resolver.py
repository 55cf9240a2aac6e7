"""The desk of lookups: the sources, what they hold, the answers given, and the lock around them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.lookup import advice, rules
from tuner.lookup.decision import Decision, Match
from tuner.lookup.device_winners import Shelf
from tuner.problem import Problem

if TYPE_CHECKING:
    from tuner.lookup.miss_counts import Tally
    from tuner.lookup.sources import Source

MEMO_LIMIT = 65_536
"""Answers kept, 2.5 KB each with the row (benchmarks/results/loading.json): M may take every value in a server."""
TUNED = ("exact", "near_m")
"""Rules whose answer is no miss: what was tuned for this very M, or one within the distance that costs little."""
lock = threading.RLock()
"""Re-entrant: a kernel's formula may itself look something up. Taken from here each time: a fork puts another here."""


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
            with lock:
                if (match := self.answers.get(device.slug, {}).get(problem)) is not None:
                    return match  # another thread came first, or it was asked for by the device's name
                if (missed := self.missed.get((device.slug, problem))) is not None:
                    return missed.called()
                if (device.slug, problem, decision.match.config) in rules.failed:  # dropped meanwhile
                    continue
                advice.report(problem, device, decision)
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
        with lock:
            if self._here is None:
                self._here = devices.current()
                self.own = self.answers.setdefault(self._here.slug, {})
            return self._here

    def sources(self) -> list[Source]:
        """All sources in the order they are asked."""
        with lock:
            if self._sources is None:
                from tuner.lookup import sources

                self._sources = [*self.named, *sources.standing()]
            return self._sources

    def shelf(self, index: int, slug: str) -> Shelf:
        """What a source holds for a device; read once."""
        key = (slug, index)
        with lock:
            if key not in self._shelves:
                self._shelves[key] = self.sources()[index].shelf(slug)
            return self._shelves[key]

    def relatives(self, index: int, device: Device) -> list[tuple[int, Shelf]]:
        """What a source holds for other devices of the architecture, with their multiprocessors; found once."""
        key = (device.slug, index)
        with lock:
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
    from tuner.lookup import miss_counts as tally

    return tally.tally_of(problem, device.slug, match.rule, devices.triton_version())


def _renew_lock() -> None:
    global lock  # noqa: PLW0603
    lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # where processes fork
    # A child forked while another thread of the parent held the lock would wait for that thread for ever.
    os.register_at_fork(after_in_child=_renew_lock)
