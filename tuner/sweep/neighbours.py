"""Winners of problems like the one at hand: what worked nearby is worth a try here."""

from __future__ import annotations

from collections.abc import Iterable

from tuner import keyed
from tuner.config import Config
from tuner.nearness import distance
from tuner.problem import Problem
from tuner.records import Winner


def nearest(problem: Problem, winners: Iterable[Winner], sm_count: int) -> list[Config]:
    """The configs of winners of the same class, each once, from the nearest problem on.

    Args:
        problem: not among them.
        winners: of one device, of any problems: only those that differ in M, N and K alone count, and of an op with a
            key of its own those whose config says something about this one (`tuner.keyed.distance`).
        sm_count: multiprocessors of that device.
    """
    others = [winner for winner in winners if winner.problem != problem]
    if problem.is_keyed:
        found = [(keyed.distance(problem, winner.problem), winner.config) for winner in others]
        ranked = sorted((away, config) for away, config in found if away is not None)
    else:
        group = problem.with_shape(1, 1, 1)
        like = [winner for winner in others if winner.problem.with_shape(1, 1, 1) == group]
        ranked = sorted((distance(problem, winner.problem, sm_count), winner.config) for winner in like)
    return list(dict.fromkeys(config for _, config in ranked))
