"""Winners of similar problems: a config that won nearby is worth a try here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.problem import Problem
from tuner.problem.distance import distance, key_distance
from tuner.store.records import Winner


def nearest(problem: Problem, winners: Iterable[Winner], sm_count: int) -> list[Config]:
    """Return the configs of similar problems' winners, each once, those of the nearest problem first.

    Args:
        problem: the problem to tune; its own winner is ignored.
        winners: winners on one device. Only problems that differ in nothing but M, N and K count; for an op with keys
            of its own, those for which `tuner.problem.distance.key_distance` gives a distance.
        sm_count: multiprocessors of that device.
    """
    others = [winner for winner in winners if winner.problem != problem]
    if problem.is_keyed:
        found = [(key_distance(problem, winner.problem), winner.config) for winner in others]
        ranked = sorted((away, config) for away, config in found if away is not None)
    else:
        group = problem.with_shape(1, 1, 1)
        like = [winner for winner in others if winner.problem.with_shape(1, 1, 1) == group]
        ranked = sorted((distance(problem, winner.problem, sm_count), winner.config) for winner in like)
    return list(dict.fromkeys(config for _, config in ranked))


FARTHEST = 4
"""The largest factor between the Ms of two rungs of which one teaches the other's search."""


def errors_nearby(
    problem: Problem, device: Device, times_us: Mapping[Problem, Mapping[Config, float]]
) -> dict[Config, tuple[float, float]]:
    """Return what the cost model was wrong by for problems that differ in M alone.

    A config that took 1.1 times its estimate for 64 rows will take about 1.1 times its estimate for 48.

    Returns:
        By config, the error in log time at the nearest of these problems, and its weight from 0 to 1.
    """
    family = problem.group()
    near = [
        (abs(math.log2(other.m / problem.m)), other)
        for other in list(times_us)
        if max(other.m, problem.m) <= FARTHEST * min(other.m, problem.m)
        and other != problem
        and other.group() == family
    ]
    found: dict[Config, tuple[float, float]] = {}
    for away, other in sorted(near):
        for config, median_us in times_us[other].items():
            if config in found:
                continue
            try:
                model = registry.find(problem.op, config.kernel).estimate_us
            except KernelError:
                continue
            if model is not None:
                error = math.log(median_us / max(model(config, other, device), 1e-3))
                found[config] = error, 1 / (1 + away)
    return found


def fitted(winners: Iterable[Config], spaces: Mapping[str, SearchSpace]) -> Iterator[Config]:
    """Yield the configs of this problem's spaces that resemble such winners most, each once.

    A winner itself may be in no space here: it may carry an option, or stages, splits and groups that suited its own
    shape.
    """
    found: set[Config] = set()
    for config in winners:
        fitted = spaces[config.kernel].nearest(config) if config.kernel in spaces else None
        if fitted is not None and fitted not in found:
            found.add(fitted)
            yield fitted
