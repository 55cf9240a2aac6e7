"""What a contest finds, as values: a row a problem, figures a contestant, geometric means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.lookup.decision import Match
from tuner.problem import Problem
from tuner.sweep import finals

OURS = "tuner"
VENDOR = "vendor"
INDUCTOR = "inductor"
AUTOTUNE = "autotune"
RIVALS = (VENDOR, INDUCTOR, AUTOTUNE)
"""Whom ours can play against, in the order of the report."""
TUNERS = (INDUCTOR, AUTOTUNE)
"""Rivals that tune themselves at their first call: the seconds of it are kept."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a problem was listed: a suite, and a group of it or ""."""

    suite: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.suite} {self.group}".rstrip()


@dataclass(frozen=True, slots=True)
class Heat:
    """A problem to play, and every place that lists it."""

    problem: Problem
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """One contestant on one problem.

    Attributes:
        median_us, p20_us, p80_us: quantiles over the rounds, microseconds a call.
        rounds: how many.
        against_ours: its time over ours, by pairs of one round; None where ours did not play.
        tuning_s: seconds of its first call, for those that tune themselves.
    """

    median_us: float
    p20_us: float
    p80_us: float
    rounds: int
    against_ours: finals.Standing | None = None
    tuning_s: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One problem's contest.

    Attributes:
        heat: the problem.
        match: the config that ours played with; None where no kernel serves the problem.
        figures: of each contestant that played.
        reasons: of each that did not, why.
        flops, bytes_moved: of one call, as the kernel counts them.
        memory_bound: whether memory limits the problem on this device, not arithmetic.
    """

    heat: Heat
    match: Match | None
    figures: Mapping[str, Figures]
    reasons: Mapping[str, str]
    flops: int
    bytes_moved: int
    memory_bound: bool

    @property
    def problem(self) -> Problem:
        """What was computed."""
        return self.heat.problem

    def tflops(self, us: float) -> float:
        """10^12 operations a second of a call that takes `us` microseconds."""
        return self.flops / us * 1e-6

    def gbytes_s(self, us: float) -> float:
        """10^9 bytes a second of a call that takes `us` microseconds."""
        return self.bytes_moved / us * 1e-3

    def ratio(self, rival: str) -> float | None:
        """A rival's time over ours; None where one of both did not play."""
        found = self.figures.get(rival)
        return found.against_ours.ratio if found and found.against_ours else None


@dataclass(frozen=True, slots=True)
class Geomean:
    """A rival's time over ours: the geometric mean of some rows.

    Attributes:
        label: "all", or a suite with its group.
        rival: whose.
        ratio: above 1 ours is faster.
        rows: how many have both figures.
    """

    label: str
    rival: str
    ratio: float
    rows: int


def figures(times: Mapping[str, Sequence[float]], tuning_s: Mapping[str, float]) -> dict[str, Figures]:
    """Figures of contestants that played together.

    Args:
        times: of each, microseconds, the i-th of all from one round.
        tuning_s: of those that tuned themselves.
    """
    found: dict[str, Figures] = {}
    for name, own in times.items():
        p20, median, p80 = (float(q) for q in np.percentile(own, [20, 50, 80]))
        paired = finals.standing(own, times[OURS]) if OURS in times and name != OURS else None
        found[name] = Figures(median, p20, p80, len(own), paired, tuning_s.get(name))
    return found


def geomeans(rows: Sequence[Row], rivals: Iterable[str]) -> list[Geomean]:
    """Of all rows, of each suite where there are several, and of each group; in the order of the rows."""
    places = list(dict.fromkeys(place for row in rows for place in row.heat.places))
    suites = list(dict.fromkeys(place.suite for place in places))
    selections = {"all": list(rows)}
    if len(suites) > 1:
        selections |= {suite: [r for r in rows if any(p.suite == suite for p in r.heat.places)] for suite in suites}
    selections |= {str(place): [row for row in rows if place in row.heat.places] for place in places if place.group}
    found: list[Geomean] = []
    for rival in rivals:
        for label, chosen in selections.items():
            logs = [math.log(ratio) for row in chosen if (ratio := row.ratio(rival)) is not None]
            if logs:
                found.append(Geomean(label, rival, math.exp(sum(logs) / len(logs)), len(logs)))
    return found
