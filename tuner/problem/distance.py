"""The distance between problems: what they must have in common, and how far apart their sizes are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tuner.problem import Problem, dtype
from tuner.problem.generic_key import SOURCE, Extra

_TILE = 128
"""The edge of the tiles used to count waves, as in the configs of large problems."""


@dataclass(frozen=True, slots=True)
class Place:
    """A problem's coordinates.

    Attributes:
        kind: what neighbours must have in common: op, bytes an element, alignment, precision, scales. Other kinds have
            other rules or other instructions.
        family: what neighbours may differ in at a cost: which 16-bit or 8-bit dtype, layout, epilogue.
        sizes: log2 of M, N, K and of every other number among the problem's keys, in the order of their names.
        tiles: log2 of how many tiles cover M and N.
    """

    kind: tuple[object, ...]
    family: tuple[object, ...]
    sizes: tuple[float, ...]
    tiles: float


def place(problem: Problem) -> Place:
    """Return a problem's coordinates."""
    p = problem
    numbers: list[tuple[str, Any]] = [(name, value) for name, value in p.extras if _is_number(value)]
    words = tuple((name, value) for name, value in p.extras if not _is_number(value))
    dtype_names = (p.a_dtype, p.b_dtype, p.out_dtype)
    widths = tuple((dtype.ITEMSIZE.get(name, name), name.startswith("int")) for name in dtype_names)
    return Place(
        (p.op, widths, p.aligned, p.precision, tuple(name for name, _ in numbers), words),
        (*dtype_names, p.layout, p.epilogue),
        (*map(math.log2, p.shape), *(math.log2(1 + abs(value)) for _, value in numbers)),
        math.log2(-(-p.m // _TILE) * -(-p.n // _TILE)),
    )


def apart(one: Place, other: Place, sm_count: int) -> float:
    """Return the distance of two problems' coordinates: in log2 of their sizes and of their waves of tiles.

    Args:
        one, other: coordinates of the same kind.
        sm_count: multiprocessors of the device; problems of less than one wave do not differ in waves.
    """
    wave = math.log2(sm_count)
    return math.dist(one.sizes, other.sizes) + abs(max(wave, one.tiles) - max(wave, other.tiles))


def distance(one: Problem, other: Problem, sm_count: int) -> float:
    """Return how far apart two problems of a kind are; see `apart`."""
    return apart(place(one), place(other), sm_count)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def key_distance(one: Problem, other: Problem) -> float | None:
    """Return how far apart two problems of an op are; None where a config of one says nothing about the other.

    Words, truth values, dtypes and, where both are known, the kernels' sources must agree. Numbers differ by their
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
