"""Winners of problems like the one at hand: what worked nearby is worth a try here."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.config import Config
from tuner.nearness import distance
from tuner.problem import Problem
from tuner.records import Winner


def nearest(problem: Problem, winners: Iterable[Winner], sm_count: int) -> list[Config]:
    """The configs of winners of the same class, each once, from the nearest problem on.

    Args:
        problem: not among them.
        winners: of one device, of any problems: only those that differ in M, N and K alone count.
        sm_count: multiprocessors of that device.
    """
    group = problem.with_shape(1, 1, 1)
    ranked = sorted(
        (distance(problem, winner.problem, sm_count), winner.config)
        for winner in winners
        if winner.problem != problem and winner.problem.with_shape(1, 1, 1) == group
    )
    return list(dict.fromkeys(config for _, config in ranked))
