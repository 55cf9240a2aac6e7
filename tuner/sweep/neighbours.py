"""Winners of problems like the one at hand: what worked nearby is worth a try here."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tuner.config import Config
from tuner.problem import Problem
from tuner.records import Winner

_TILE = 128


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


def distance(one: Problem, other: Problem, sm_count: int) -> float:
    """How far apart two problems of a class are: in log2 of M, N and K, and of how many waves of tiles they make."""
    shape = math.dist([math.log2(size) for size in one.shape], [math.log2(size) for size in other.shape])
    return shape + abs(math.log2(_waves(one, sm_count) / _waves(other, sm_count)))


def _waves(problem: Problem, sm_count: int) -> float:
    return max(1.0, -(-problem.m // _TILE) * -(-problem.n // _TILE) / sm_count)
