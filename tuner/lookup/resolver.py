"""Answers problems: by what was answered before, by what was foreseen, or by the match rules over all sources."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from tuner.bounded import make_room
from tuner.errors import ProblemError
from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.lookup import advice, answers, match_rules
from tuner.lookup.answered_ranges import FamilyAnswers, Known
from tuner.lookup.answers import Answers
from tuner.lookup.decision import TUNED, Decision, Match
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.foreseen import Foreseen
from tuner.lookup.lookup_lock import lookup_lock
from tuner.lookup.read_sources import ReadSources
from tuner.lookup.row import BAD_VALUE
from tuner.problem import Problem

if TYPE_CHECKING:
    from tuner.lookup.miss_counts import MissCounter
    from tuner.lookup.sources import Source

T = TypeVar("T")


class Resolver:
    """Answers problems from its sources; `use` puts another resolver in its place.

    Sources are read and answers given under `lookup_lock`, so that threads that ask first at the same time read every
    source once and log every miss once.

    Attributes:
        sources: what was read of them.
        answers: those given, by problem.
        own: the answers for this process's device, once it is known: a dict of `answers`.
    """

    def __init__(self, named: tuple[Source, ...]) -> None:
        """Begin with nothing read and nothing answered; the sources named come before all others."""
        self.sources = ReadSources(named)
        self.answers = Answers()
        self.own: dict[Problem, Match] = {}
        self._here: Device | None = None
        self._ranges = FamilyAnswers(self.sources)
        self._foreseen = Foreseen()
        self._reported: set[Hashable] = set()

    def answer(self, problem: Problem, device: Device | str | None, *, is_measured: bool = False) -> Match:
        """Decide, keep and return the answer; log a miss and a refused row, and count the calls of a miss.

        A new M of a range that was answered before gets the same answer: nothing is decided or logged again. See
        `advice.report` for `is_measured`.
        """
        _check_is_problem(problem)
        device = self.device(device)
        slug = device.slug
        if (match := self.answers.again(problem, slug)) is not None:
            return match
        with lookup_lock():
            if (known := self._answered(problem, device)) is not None:
                if known[0].rule == "default":
                    advice.count_another()
                return self.answers.keep(problem, slug, *known)
        while True:
            decision = self._foreseen_decision(problem, device) or self.decide(problem, device)
            with lookup_lock():
                if (match := self.answers.again(problem, slug)) is not None:
                    return match  # another thread came first
                if (slug, problem, decision.match.config) in match_rules.failed:  # dropped meanwhile
                    continue
                make_room(self._reported, answers.MOST)
                advice.report(problem, device, decision, self._reported, is_measured=is_measured)
                counter = None if decision.match.rule in TUNED else _miss_counter(problem, device, decision)
                if not problem.is_keyed and decision.match.rule != "exact":
                    self._ranges.add(problem, slug, decision, counter)
                return self.answers.keep(problem, slug, decision.match, counter)

    def report_no_binary(self, problem: Problem, device: Device, match: Match, instead: str) -> None:
        """Log, once a family, that no shipped binary launches an answer, and what serves instead."""
        with lookup_lock():
            make_room(self._reported, answers.MOST)
            advice.report_no_binary(problem, device, match, instead, self._reported)

    def defaults_up_to(self, problem: Problem, device: Device, most_m: int) -> Iterator[tuple[range, Match]]:
        """See `lookup.defaults_up_to`. A range whose answer does not suit its first M is left to its own calls.

        At which Ms an answer can run is found out here too: no later call asks the kernel's rules.
        """
        m = 1
        while m <= most_m:
            last, match = self._known_or_foreseen(problem.with_m(m), device) or (m, None)
            if match is not None and match.rule == "default":
                ms = range(m, min(last, most_m) + 1)
                runs = [each for each in ms if match_rules.can_run(match.config, problem.with_m(each), device)]
                self._foreseen.add_runs(match.config, problem, device.slug, runs)
                yield ms, match
            is_tuned = match is not None and match.rule != "default"
            m = 1 + (last if is_tuned or last > m else match_rules.default_range(m)[1])

    def explanation(
        self, problem: Problem, device: Device | str | None
    ) -> tuple[Device, list[DeviceWinners], Decision]:
        """The device, what every source holds for it, and the decision; reads every source."""
        _check_is_problem(problem)
        device = self.device(device)
        return device, list(self.sources.own(device.slug)), self.decide(problem, device)

    def decide(self, problem: Problem, device: Device) -> Decision:
        """The decision about a problem, from these sources; nothing is kept."""
        own, others = self.sources.own, partial(self.sources.of_relatives, device)
        named, ours = (_Repeatable(partial(own, device.slug, ours=each)) for each in (False, True))
        return match_rules.decide(problem, device, named, _Repeatable(others), ours)

    def device(self, given: Device | str | None) -> Device:
        """A device itself, the one of a slug or name, or this process's for None."""
        if given is None:
            return self._here or self.here()
        return given if isinstance(given, Device) else self.sources.device(given)

    def here(self) -> Device:
        """This process's device."""
        with lookup_lock():
            if self._here is None:
                self._here = devices.current()
                self.own = self.answers.of(self._here.slug)
            return self._here

    def _answered(self, problem: Problem, device: Device) -> Known | None:
        """The answer for the range of Ms that holds this one.

        None where that is not known yet, where a row is exact, and where the config could not be launched.
        """
        known = self._ranges.at(problem, device.slug)
        return known if known is not None and self._holds(known[0], problem, device) else None

    def _known_or_foreseen(self, problem: Problem, device: Device) -> tuple[int, Match] | None:
        """The last M of the range that holds a problem's, and its answer; None where no kernel serves it."""
        with lookup_lock():
            ranges = self._ranges.of_family(problem, device.slug)
            if ranges is not None and (known := ranges.at(problem.m)) is not None:
                return ranges.last(problem.m), known[0]
        decision = self._foreseen_decision(problem, device)
        if decision is None:
            try:
                decision = self.decide(problem, device)
            except BAD_VALUE:
                return None
            if decision.match.rule == "default":
                self._foreseen.add(problem, device.slug, decision)
        return decision.ms[1], decision.match

    def _foreseen_decision(self, problem: Problem, device: Device) -> Decision | None:
        """What was decided ahead about the range of Ms that holds a problem's."""
        foreseen = self._foreseen.decisions(problem, device.slug)
        return next((each for each in foreseen if self._holds(each.match, problem, device)), None)

    def _holds(self, match: Match, problem: Problem, device: Device) -> bool:
        """Whether the answer for a range of Ms is that for one of them."""
        if match_rules.failed and (device.slug, problem, match.config) in match_rules.failed:
            return False
        # The rows of triton-tuner's own tables come after the ranges of others.
        ours = None if match.rule not in TUNED or self.sources.is_ours(match.source) else False
        if any(problem in winners.rows for winners in self.sources.own(device.slug, ours=ours)):
            return False
        if match.rule in TUNED:
            return True
        if any(problem in winners.rows for winners in self.sources.of_relatives(device)):
            return False
        if match.rule != "default" or self._foreseen.is_known_to_run(match.config, problem, device.slug):
            return True
        return match_rules.can_run(match.config, problem, device)


class _Repeatable(Generic[T], Iterable[T]):
    """A generator that starts anew each time it is gone through."""

    def __init__(self, start: Callable[[], Iterator[T]]) -> None:
        self._start = start

    def __iter__(self) -> Iterator[T]:
        return self._start()


def _check_is_problem(problem: object) -> None:
    if not isinstance(problem, Problem):
        raise ProblemError(
            f"not a problem: {problem!r:.60}: expected a tuner.Problem, for instance Problem(64, 64, 64)"
        )


def _miss_counter(problem: Problem, device: Device, decision: Decision) -> MissCounter | None:
    from tuner.lookup import miss_counts

    ms = (problem.m, problem.m) if problem.is_keyed else decision.ms
    return miss_counts.counter_of(problem, ms, device.slug, decision.match.rule, devices.triton_version())
