"""Winners of similar problems: a config that won nearby is worth a try here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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


def fitted(winners: Iterable[Config], spaces: Mapping[str, SearchSpace]) -> Iterator[Config]:
    """Yield the configs of this problem's spaces that resemble such winners most, each once.

    A winner itself may be in no space here: it may carry an option, or stages, splits and groups that suited its own
    shape.

    Args:
        winners: configs from `nearest`.
        spaces: the problem's search spaces by kernel; winners of other kernels are skipped.
    """
    found: set[Config] = set()
    for config in winners:
        fitted = spaces[config.kernel].nearest(config) if config.kernel in spaces else None
        if fitted is not None and fitted not in found:
            found.add(fitted)
            yield fitted
