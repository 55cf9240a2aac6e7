"""What the page is given: one JSON document of the measurements, in columns, in which things stand for themselves once.

Problems, configs, kernels, runs and places are lists, and everything else names them by their place in the list.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from tuner.kernel.config import Config
from tuner.lookup import families
from tuner.problem import Problem
from tuner.problem.family import Check, Family
from tuner.problem.text import problem_order
from tuner.report.measurements import Measurements, Place
from tuner.store.listing import RunRow, TrialRow
from tuner.store.records import State, Winner
from tuner.version import __version__

T = TypeVar("T", bound=Hashable)
MAX_TRIALS = 20_000
"""Where there are more, a browser cannot draw them."""
_FAILED_OF = 300  # characters of a message: compilers say pages


class Listed(Generic[T]):
    """Values in the order in which they are first asked for, each with its number."""

    def __init__(self, values: Iterable[T] = ()) -> None:
        self._numbers: dict[T, int] = {}
        for value in values:
            self.number(value)

    def number(self, value: T) -> int:
        """Return the number of a value, which is a new one for a new value."""
        return self._numbers.setdefault(value, len(self._numbers))

    def __iter__(self) -> Iterator[T]:
        return iter(self._numbers)


def document(found: Measurements, *, against: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what the page shows; the same measurements give the same document.

    Args:
        found: the measurements.
        against: what `tuner.report.regressions` says; None leaves that part out.
    """
    tried = {trial.problem for trial in found.trials} | {winner.problem for winner in found.winners}
    problems = Listed(sorted(tried, key=problem_order))
    places = Listed(found.places)
    runs = Listed(sorted(found.runs.values(), key=lambda run: (run.started_at, run.uuid)))
    configs: Listed[Config] = Listed()
    searches = _searches(found, places, problems)
    shown = _thinned(found.trials, _kept(found, searches))
    trials = _trials(shown, found, searches, (places, problems, configs, runs))
    winners = [_winner(one, (places, problems, configs)) for one in found.winners]
    served = [each for place in found.places for each in _families(found, place, (places, configs))]
    return {
        "tuner": __version__,
        "places": [_place(place, found) for place in places],
        "problems": _problems(list(problems)),
        "runs": [_run(run) for run in runs],
        "searches": [search.fields(configs) for search in searches.values()],
        "winners": winners,
        "families": served,
        "failures": _failures(found, places),
        "trials": trials,
        "shown": None if len(shown) == len(found.trials) else [len(shown), len(found.trials), MAX_TRIALS],
        "configs": [{"kernel": one.kernel, "label": one.label, "values": dict(one.pairs)} for one in configs],
        "kernels": sorted({one.kernel for one in configs}),
        "against": against,
    }


class Search:
    """The trials of one problem in one place: how the search came to its best.

    Attributes:
        place, problem: their numbers in the document's lists.
        count, complete: how many trials there are, and how many of them have a time.
        order: by a trial's id, its number among those of the race, from 1.
        improved: the trials of the race that were the fastest so far, in their order.
        exhaustive_us: the best time of a search that tried every config, microseconds; None where there was none.
    """

    def __init__(self, place: int, problem: int, trials: list[TrialRow], runs: dict[str, RunRow]) -> None:
        self.place, self.problem = place, problem
        every = [trial for trial in trials if _is_exhaustive(runs[trial.run])]
        raced = [trial for trial in trials if not _is_exhaustive(runs[trial.run])] or trials
        self.count, self.complete = len(trials), sum(_us(trial) is not None for trial in trials)
        self.order = {trial.trial_id: number for number, trial in enumerate(raced, 1)}
        self.improved: list[TrialRow] = []
        for trial in raced:
            us = _us(trial)
            if us is not None and (not self.improved or us < (_us(self.improved[-1]) or 0)):
                self.improved.append(trial)
        self.exhaustive_us = min((us for trial in every if (us := _us(trial)) is not None), default=None)

    def fields(self, configs: Listed[Config]) -> dict[str, Any]:
        """Return what the document holds of it; times are microseconds a call."""
        best = [[self.order[one.trial_id], _figure(_us(one)), configs.number(one.config)] for one in self.improved]
        counts = {"trials": self.count, "complete": self.complete, "raced": len(self.order)}
        where = {"place": self.place, "problem": self.problem}
        return {**where, **counts, "best": best, "exhaustive_us": _figure(self.exhaustive_us)}


def _is_exhaustive(run: RunRow) -> bool:
    return "exhaustive" in run.argv or "--strategy=exhaustive" in run.argv


def _us(trial: TrialRow) -> float | None:
    return trial.outcome.median_us if trial.outcome.state is State.COMPLETE else None


def _searches(found: Measurements, places: Listed[Place], problems: Listed[Problem]) -> dict[tuple[int, int], Search]:
    groups: dict[tuple[int, int], list[TrialRow]] = defaultdict(list)
    for trial in found.trials:
        groups[places.number(found.place_of(trial)), problems.number(trial.problem)].append(trial)
    return {key: Search(*key, groups[key], found.runs) for key in sorted(groups)}


def _kept(found: Measurements, searches: dict[tuple[int, int], Search]) -> set[int]:
    """The ids of trials that a thinned report still shows: winners, ties, and what was the best so far."""
    chosen = {(one.device.slug, one.problem, config) for one in found.winners for config in (one.config, *one.tied)}
    ids = {trial.trial_id for trial in found.trials if (trial.device, trial.problem, trial.config) in chosen}
    return ids | {trial.trial_id for search in searches.values() for trial in search.improved}


def _thinned(trials: Sequence[TrialRow], kept: set[int]) -> list[TrialRow]:
    """Return all trials, or about MAX_TRIALS: those of `kept` and every n-th of the others, in their order.

    Args:
        trials: the trials, the oldest first.
        kept: ids of trials that are in every case shown.
    """
    others = [trial.trial_id for trial in trials if trial.trial_id not in kept]
    room = max(0, MAX_TRIALS - (len(trials) - len(others)))
    if len(others) <= room:
        return list(trials)
    # Spread evenly over the run: of n others, those at 0, n/room, 2n/room ...
    chosen = kept | {others[number * len(others) // room] for number in range(room)}
    return [trial for trial in trials if trial.trial_id in chosen]


def _trials(
    shown: list[TrialRow],
    found: Measurements,
    searches: dict[tuple[int, int], Search],
    lists: tuple[Listed[Place], Listed[Problem], Listed[Config], Listed[RunRow]],
) -> dict[str, list[Any]]:
    places, problems, configs, runs = lists
    cards = Listed(sorted({trial.outcome.gpu_uuid for trial in shown if trial.outcome.gpu_uuid}))
    columns: dict[str, list[Any]] = defaultdict(list)
    for trial in shown:
        place, problem = places.number(found.place_of(trial)), problems.number(trial.problem)
        outcome = trial.outcome
        row = {
            "place": place,
            "problem": problem,
            "config": configs.number(trial.config),
            "run": runs.number(found.runs[trial.run]),
            "state": str(outcome.state),
            "us": _figure(_us(trial)),
            "number": searches[place, problem].order.get(trial.trial_id),
            "at": _epoch_s(trial.measured_at),
            "clock_mhz": outcome.sm_clock_mhz,
            "power_w": None if outcome.power_w is None else round(outcome.power_w),
            "throttle": outcome.throttle,
            "card": None if outcome.gpu_uuid is None else cards.number(outcome.gpu_uuid) + 1,
            "message": outcome.message.partition("\n")[0][:_FAILED_OF],
        }
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _place(place: Place, found: Measurements) -> dict[str, Any]:
    inside = [trial for trial in found.trials if found.place_of(trial) == place]
    winners = [one for one in found.winners if Place(one.device, one.environment, one.protocol) == place]
    device = place.device
    return {
        "device": device.name,
        "slug": device.slug,
        "interpreter": device.is_interpreter,
        "facts": {
            "architecture": device.arch,
            "multiprocessors": None if device.is_interpreter else device.sm_count,
            "memory": None if device.is_interpreter else f"{device.memory_bytes / 1e9:.0f} GB",
            **{name: value for name, value in dataclasses.asdict(place.environment).items() if value},
            "protocol": place.protocol,
        },
        "trials": len(inside),
        "problems": len({trial.problem for trial in inside}),
        "failed": sum(trial.outcome.state is not State.COMPLETE for trial in inside),
        "first": inside[0].measured_at if inside else None,
        "last": inside[-1].measured_at if inside else None,
        "vs_vendor": _geomean(one.vs_vendor for one in winners),
        "vs_default": _geomean(one.vs_default for one in winners),
    }


def _geomean(ratios: Iterable[float | None]) -> float | None:
    known = [ratio for ratio in ratios if ratio]
    return _figure(statistics.geometric_mean(known)) if known else None


def _problems(problems: list[Problem]) -> list[dict[str, Any]]:
    """Names that are told apart, also where two kernels of one name have a problem each."""
    count = Counter(map(str, problems))
    return [
        {"name": f"{one} of source {one.source}" if count[str(one)] > 1 and one.source else str(one)}
        | ({} if one.is_keyed else dict(zip("mnk", one.shape, strict=True)))
        for one in problems
    ]


def _run(run: RunRow) -> dict[str, Any]:
    names = ("uuid", "host", "status", "started_at", "ended_at", "tool_version", "trials")
    return {name: getattr(run, name) for name in names} | {"command": " ".join(run.argv)}


def _winner(one: Winner, lists: tuple[Listed[Place], Listed[Problem], Listed[Config]]) -> dict[str, Any]:
    places, problems, configs = lists
    return {
        "place": places.number(Place(one.device, one.environment, one.protocol)),
        "problem": problems.number(one.problem),
        "config": configs.number(one.config),
        "tied": [configs.number(config) for config in one.tied if config != one.config],
        "us": _figure(one.median_us),
        "tflops": _figure(one.tflops),
        **{name: _figure(getattr(one, name)) for name in ("default_us", "vendor_us", "vs_default", "vs_vendor")},
        "decided_at": one.decided_at,
    }


def _families(
    found: Measurements, place: Place, lists: tuple[Listed[Place], Listed[Config]]
) -> Iterable[dict[str, Any]]:
    """Families of a place with two Ms or more, their ranges where some were decided."""
    places, configs = lists
    rungs: dict[Problem, dict[int, Winner]] = defaultdict(dict)
    for one in found.winners:
        if Place(one.device, one.environment, one.protocol) == place and not one.problem.is_keyed:
            rungs[one.problem.group()][one.problem.m] = one
    decided = [one for one in found.families if (one.device, one.environment) == (place.device, place.environment)]
    for group in sorted((group for group, ms in rungs.items() if len(ms) > 1), key=problem_order):
        # As lookups serve them: the ranges of a family's ladders add up.
        parts = families.overlaid([one.family for one in decided if one.family.problem == group])
        ranges = [
            {"first": each.first_m, "last": each.last_m, "config": configs.number(winner.config)}
            | {"evidence": each.evidence}
            for part in parts
            for each in part.ranges
            if (winner := rungs[group].get(each.row_m))
        ]
        yield {
            "place": places.number(place),
            "name": str(group).replace(f" {group.m}x", " Mx", 1),
            "n": group.n,
            "k": group.k,
            "ranges": ranges,
            "check": _check(parts),
            "rungs": [
                {
                    "m": m,
                    "us": _figure(one.median_us),
                    "tflops": _figure(one.tflops),
                    "config": configs.number(one.config),
                }
                | {"vs_vendor": _figure(one.vs_vendor), "vs_default": _figure(one.vs_default)}
                for m, one in sorted(rungs[group].items())
            ],
        }


def _check(parts: Sequence[Family]) -> dict[str, Any] | None:
    """What serving by these lost at all Ms that were played, None where none was."""
    checks = [*{id(part.check): part.check for part in parts if part.check}.values()]  # one may be in two parts
    if len(checks) < 2:
        return checks[0]._asdict() if checks else None
    played = sum(each.played for each in checks)
    logs = sum(each.played * math.log(each.geomean) for each in checks)
    return Check(played, round(math.exp(logs / played), 4), max(each.worst for each in checks))._asdict()


def _failures(found: Measurements, places: Listed[Place]) -> list[dict[str, Any]]:
    """How many trials of each kernel ended in each state, with the message that was said most often."""
    messages: dict[tuple[int, str, str], Counter[str]] = defaultdict(Counter)
    for trial in found.trials:
        key = (places.number(found.place_of(trial)), trial.config.kernel, str(trial.outcome.state))
        messages[key][trial.outcome.message.partition("\n")[0][:_FAILED_OF]] += 1
    return [
        {"place": place, "kernel": kernel, "state": state, "count": said.total()}
        | {"message": min(said, key=lambda text: (-said[text], text))}
        for (place, kernel, state), said in sorted(messages.items())
    ]


def _figure(value: float | None) -> float | None:
    """Round to what anybody can tell apart, which is what keeps the file small."""
    return None if value is None else float(f"{value:.5g}")


def _epoch_s(text: str) -> int | None:
    try:
        return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())
    except ValueError:
        return None
