"""Configs that a calibrated formula looks at closely: those that the cost model alone has near its least."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tuner.kernel.config import Config, Value
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.tile import Tile

TIMES = 1.35
"""How many times the cost model's least an estimate of it may be."""


class Candidates(NamedTuple):
    """A tile and all that it is expanded to.

    Attributes:
        point: of a space's axes.
        tile: its model.
        splits: every SPLIT_K.
        variants: of these each, what expanding the point changes.
    """

    point: Config
    tile: Tile
    splits: Sequence[int]
    variants: Callable[[int], Iterable[Mapping[str, Value]]]


def likely(tiles: Iterable[Candidates]) -> dict[Config, float]:
    """Of tiles all configs whose estimate is within `TIMES` of the least; with that, in microseconds."""
    found: list[tuple[float, Config, Mapping[str, Value]]] = []
    least_us = math.inf
    # The fastest first: by the bound of what they can be at best, most others need not be expanded.
    for one in sorted(tiles, key=lambda one: one.tile.least_us(1)):
        for splits in one.splits:
            if one.tile.least_us(splits) <= TIMES * least_us:
                for parameters in one.variants(splits):
                    us = cost.of_tile(one.tile, parameters)
                    least_us = min(least_us, us)
                    found.append((us, one.point, parameters))
    return {point.replace(**parameters): us for us, point, parameters in found if us <= TIMES * least_us}
