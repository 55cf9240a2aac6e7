"""How near two problems are: what they may not differ in, and how far their sizes lie apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.problem import Problem, dtype
from tuner.problem.generic_key import Extra

_TILE = 128
"""Edge of the tiles that waves are counted in: what large problems are tuned to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a problem lies.

    Attributes:
        kind: what no neighbour may differ in: op, bytes an element, alignment, precision, scales. Configs of another
            kind meet other rules, or other instructions.
        family: what it may differ in at a price: which 16-bit or 8-bit dtype, layout, epilogue.
        sizes: log2 of M, N, K and of every other number among the problem's keys, in the order of their names.
        tiles: log2 of how many tiles cover M and N.
    """

    kind: tuple[object, ...]
    family: tuple[object, ...]
    sizes: tuple[float, ...]
    tiles: float


def place(problem: Problem) -> Place:
    """Where a problem lies."""
    p = problem
    numbers = [(name, value) for name, value in p.extras if _is_number(value)]
    words = tuple((name, value) for name, value in p.extras if not _is_number(value))
    dtype_names = (p.a_dtype, p.b_dtype, p.out_dtype)
    widths = tuple((dtype.ITEMSIZE.get(name, name), name.startswith("int")) for name in dtype_names)
    return Place(
        (p.op, widths, p.aligned, p.precision, tuple(name for name, _ in numbers), words),
        (*dtype_names, p.layout, p.epilogue),
        (*map(math.log2, p.shape), *(math.log2(1 + abs(float(value))) for _, value in numbers)),
        math.log2(-(-p.m // _TILE) * -(-p.n // _TILE)),
    )


def apart(one: Place, other: Place, sm_count: int) -> float:
    """How far apart two places of a kind are: in log2 of their sizes, and of how many waves of tiles they make.

    Args:
        one, other: of one kind.
        sm_count: multiprocessors of the device: below one wave all are as one.
    """
    wave = math.log2(sm_count)
    return math.dist(one.sizes, other.sizes) + abs(max(wave, one.tiles) - max(wave, other.tiles))


def distance(one: Problem, other: Problem, sm_count: int) -> float:
    """How far apart two problems of a kind are; see `apart`."""
    return apart(place(one), place(other), sm_count)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def key_distance(one: Problem, other: Problem) -> float | None:
    """How far apart two problems of an op are; None where a config of one says nothing about the other.

    Words, truth values and dtypes must agree. Numbers differ by their logarithms; an argument that is aligned, or 1,
    for one of the two alone counts as a factor of 2 in a number.
    """
    if (one.op, one.a_dtype) != (other.op, other.a_dtype):
        return None
    mine, its = dict(one.extras), dict(other.extras)
    away = 0.0
    for name in mine.keys() | its.keys():
        a, b = mine.get(name), its.get(name)
        if a == b:
            continue
        if name.endswith((".aligned", ".one")):
            away += 1.0
        elif _is_size(a) and _is_size(b):
            away += abs(math.log2((a + 1) / (b + 1)))  # type: ignore[operator]  # both are numbers
        else:
            return None
    return away


def _is_size(value: Extra | None) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
