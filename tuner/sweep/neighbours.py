"""Winners of problems like the one at hand: what worked nearby is worth a try here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.problem import Problem
from tuner.problem.distance import distance, key_distance
from tuner.store.records import Winner


def nearest(problem: Problem, winners: Iterable[Winner], sm_count: int) -> list[Config]:
    """The configs of winners of the same class, each once, from the nearest problem on.

    Args:
        problem: not among them.
        winners: of one device, of any problems: only those that differ in M, N and K alone count, and of an op with a
            key of its own those whose config says something about this one (`tuner.problem.distance.key_distance`).
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
    """What this problem's spaces have that is most like such winners, each once, worked out as it is asked for.

    A winner may carry an option, or stages, splits and groups that its own shape called for: no space here holds it.

    Args:
        winners: configs of `nearest`.
        spaces: of the problem, by kernel; winners of other kernels are left out.
    """
    found: set[Config] = set()
    for config in winners:
        fitted = spaces[config.kernel].nearest(config) if config.kernel in spaces else None
        if fitted is not None and fitted not in found:
            found.add(fitted)
            yield fitted
