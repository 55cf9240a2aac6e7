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
from tuner.problem.batches import split
from tuner.problem.distance import distance, key_distance
from tuner.problem.merged_parts import PARTS
from tuner.store.records import Winner


def nearest(problem: Problem, winners: Iterable[Winner], sm_count: int) -> list[Config]:
    """Return the configs of similar problems' winners, each once, those of the nearest problem first.

    Args:
        problem: the problem to tune; its own winner is ignored.
        winners: winners on one device. Only problems that differ in nothing but M, N, K and batch count; for an op with
            keys of its own, those for which `tuner.problem.distance.key_distance` gives a distance.
        sm_count: multiprocessors of that device.
    """
    others = [winner for winner in winners if winner.problem != problem]
    if problem.is_keyed:
        found = [(key_distance(problem, winner.problem), winner.config) for winner in others]
        ranked = sorted((away, config) for away, config in found if away is not None)
    else:
        group = _group(problem)
        like = [winner for winner in others if _group(winner.problem) == group]
        ranked = sorted((distance(problem, winner.problem, sm_count), winner.config) for winner in like)
    return list(dict.fromkeys(config for _, config in ranked))


def _group(problem: Problem) -> tuple[object, ...]:
    """All that tells a problem apart but its sizes."""
    parts = [value for name, value in problem.fields().items() if name not in ("m", "n", "k", "extras")]
    return (*parts, *(pair for pair in problem.extras if pair[0] not in ("batch", PARTS)))


FARTHEST = 4
"""The largest factor between the Ms, and the batches, of two rungs for one to start from what the other measured."""


def model_errors(problem: Problem, device: Device, times_us: Mapping[Config, float]) -> dict[Config, float]:
    """Return what the cost model was wrong by for configs that were measured, in log time, where there is a model."""
    errors = {}
    for config, median_us in times_us.items():
        try:
            spec = registry.find(problem.op, config.kernel)
            predicted = spec.estimate_us and registry.ask(spec, "estimate_us", config, problem, device)
        except KernelError:
            continue
        if predicted is not None:
            errors[config] = math.log(median_us / max(predicted, 1e-3))
    return errors


def errors_nearby(
    problem: Problem, errors: Mapping[Problem, Mapping[Config, float]]
) -> dict[Config, tuple[float, float]]:
    """Return what the cost model was wrong by for problems that differ in M, or in batch, alone.

    A config that took 1.1 times its estimate for 64 rows will take about 1.1 times its estimate for 48.

    Args:
        problem: the problem to tune.
        errors: by problem, the `model_errors` of the configs that were measured.

    Returns:
        By config, the error in log time at the nearest of these problems, and its weight from 0 to 1.
    """
    key, batch = split(problem)
    near: list[tuple[float, Problem]] = []
    for other in list(errors):
        its_key, its_batch = split(other)
        if its_key == key and other != problem:
            factors = (_apart(other.m, problem.m), _apart(max(1, its_batch), max(1, batch)))
            if max(factors) <= FARTHEST:
                near.append((sum(map(math.log2, factors)), other))
    found: dict[Config, tuple[float, float]] = {}
    for away, other in sorted(near):
        for config, error in errors[other].items():
            found.setdefault(config, (error, 1 / (1 + away)))
    return found


def _apart(one: int, other: int) -> float:
    return max(one, other) / min(one, other)


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
