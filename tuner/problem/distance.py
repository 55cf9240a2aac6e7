"""The distance between problems: how far apart their sizes, or the numbers among their keys, are."""

from __future__ import annotations

import math

from tuner.problem import Problem
from tuner.problem.batches import batch_of
from tuner.problem.generic_key import SOURCE, Extra

_TILE = 128
"""The edge of the tiles used to count waves, as in the configs of large problems."""


def distance(one: Problem, other: Problem, sm_count: int) -> float:
    """Return how far apart two problems are that differ in sizes and batch alone: in log2 of these and of their waves.

    Args:
        one, other: the problems.
        sm_count: multiprocessors of the device; problems of less than one wave of tiles do not differ in waves.
    """
    wave = math.log2(sm_count)
    sizes = [tuple(map(math.log2, (*problem.shape, batch_of(problem) or 1))) for problem in (one, other)]
    tiles = (
        math.log2(-(-problem.m // _TILE) * -(-problem.n // _TILE) * (batch_of(problem) or 1))
        for problem in (one, other)
    )
    mine, its = (max(wave, each) for each in tiles)
    return math.dist(*sizes) + abs(mine - its)


def key_distance(one: Problem, other: Problem) -> float | None:
    """Return how far apart two problems of an op are; None where a config of one says nothing about the other.

    Words, booleans, dtypes and, where both are known, the kernels' sources must agree. Numbers differ by their
    logarithms. An argument that is aligned or 1 in only one of the problems counts like a factor of 2 in a number.
    """
    if (one.op, one.a_dtype) != (other.op, other.a_dtype):
        return None
    mine, its = dict(one.extras), dict(other.extras)
    away = 0.0
    for name in mine.keys() | its.keys():
        a, b = mine.get(name), its.get(name)
        if a == b or (name == SOURCE and None in (a, b)):
            continue  # what was tuned before sources were recorded is a guess: near, and never the same
        if name.endswith((".aligned", ".one")):
            away += 1.0
        elif _is_size(a) and _is_size(b):
            away += abs(math.log2(a + 1) - math.log2(b + 1))  # type: ignore[operator]  # both are numbers
        else:
            return None
    return away


def _is_size(value: Extra | None) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
