"""A contest's results: a row for each problem, figures for each contestant, geometric means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tuner.hardware.device import Device
from tuner.lookup.decision import Match
from tuner.problem import Problem
from tuner.problem.dtype import ITEMSIZE
from tuner.sweep import finals

_RATES = {1: 2.0, 2: 1.0, 4: 1 / 16}
"""Arithmetic rate by bytes of an operand, relative to 16 bits; IEEE float32 does not use tensor cores."""
_TF32_RATE = 0.5
OURS = "tuner"
VENDOR = "vendor"
INDUCTOR = "inductor"
AUTOTUNE = "autotune"
TUNERS = (INDUCTOR, AUTOTUNE)
"""Rivals that tune themselves at their first call; how long that takes is kept."""


@dataclass(frozen=True, slots=True)
class SuiteGroup:
    """Where a problem was listed: a suite and one of its groups; "" where it has none."""

    suite: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.suite} {self.group}".rstrip()


@dataclass(frozen=True, slots=True)
class ListedProblem:
    """A problem with every suite and group that lists it."""

    problem: Problem
    places: tuple[SuiteGroup, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """One contestant on one problem.

    Attributes:
        median_us, p20_us, p80_us: quantiles over the rounds, microseconds a call.
        rounds: how many rounds were counted.
        against_ours: its time over ours, paired by rounds; None where ours did not take part.
        tuning_s: how long the first call of a self-tuning contestant took, seconds.
    """

    median_us: float
    p20_us: float
    p80_us: float
    rounds: int
    against_ours: finals.PairedRatio | None = None
    tuning_s: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One problem's contest.

    Attributes:
        listed: the problem.
        match: the config that ours used; None where no kernel serves the problem.
        figures: the figures of each contestant that took part.
        reasons: why the others did not take part.
        flops, bytes_moved: what one call does, as the kernel counts it.
        memory_bound: whether memory limits the problem on this device rather than arithmetic.
    """

    listed: ListedProblem
    match: Match | None
    figures: Mapping[str, Figures]
    reasons: Mapping[str, str]
    flops: int
    bytes_moved: int
    memory_bound: bool

    @property
    def problem(self) -> Problem:
        """What was computed."""
        return self.listed.problem

    def tflops(self, us: float) -> float:
        """Return 10^12 operations a second for a call that takes `us` microseconds."""
        return self.flops / us * 1e-6

    def gbytes_s(self, us: float) -> float:
        """Return 10^9 bytes a second for a call that takes `us` microseconds."""
        return self.bytes_moved / us * 1e-3

    def ratio(self, rival: str) -> float | None:
        """Return a rival's time over ours; None where either did not take part."""
        found = self.figures.get(rival)
        return found.against_ours.ratio if found and found.against_ours else None


@dataclass(frozen=True, slots=True)
class Geomean:
    """The geometric mean of a rival's time over ours, over some rows.

    Attributes:
        label: "all", or a suite with its group.
        rival: the rival's name.
        ratio: above 1, ours is faster.
        rows: how many rows have both figures.
    """

    label: str
    rival: str
    ratio: float
    rows: int


def is_memory_bound(problem: Problem, flops: int, bytes_moved: int, device: Device) -> bool:
    """Return whether moving the bytes takes longer than the arithmetic, each at the device's peak.

    Args:
        problem: decides at which rate the device computes.
        flops, bytes_moved: of one call.
        device: the device; its clock is the one that it sustains.
    """
    tensor_cores = problem.precision in ("tf32", "tf32x3")
    speed = _TF32_RATE if tensor_cores else _RATES[ITEMSIZE[problem.a_dtype]]
    flops_per_us = 2 * device.features.macs * device.sm_count * device.sustained_mhz
    return flops / (flops_per_us * speed) < bytes_moved / device.peak_bytes_per_us


def figures(times: Mapping[str, Sequence[float]], tuning_s: Mapping[str, float]) -> dict[str, Figures]:
    """Return the figures of contestants that ran in the same rounds.

    Args:
        times: by contestant, microseconds a call in each round; the i-th of all are of one round.
        tuning_s: by contestant, the seconds that it tuned itself.
    """
    found: dict[str, Figures] = {}
    for name, own in times.items():
        p20, median, p80 = (float(q) for q in np.percentile(own, [20, 50, 80]))
        paired = finals.compare(own, times[OURS]) if OURS in times and name != OURS else None
        found[name] = Figures(median, p20, p80, len(own), paired, tuning_s.get(name))
    return found


def geomeans(rows: Sequence[Row], rivals: Iterable[str]) -> list[Geomean]:
    """Return each rival's means: over all rows, over each suite where there are several, over each group of a suite.

    A mean over no row with both times is left out.
    """
    places = list(dict.fromkeys(place for row in rows for place in row.listed.places))
    suites = list(dict.fromkeys(place.suite for place in places))
    selections = {"all": list(rows)}
    if len(suites) > 1:
        selections |= {suite: [r for r in rows if any(p.suite == suite for p in r.listed.places)] for suite in suites}
    selections |= {str(place): [row for row in rows if place in row.listed.places] for place in places if place.group}
    found: list[Geomean] = []
    for rival in rivals:
        for label, chosen in selections.items():
            logs = [math.log(ratio) for row in chosen if (ratio := row.ratio(rival)) is not None]
            if logs:
                found.append(Geomean(label, rival, math.exp(sum(logs) / len(logs)), len(logs)))
    return found
