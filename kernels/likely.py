"""Configs that a calibrated formula looks at closely: those that the cost model alone has near its least."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from tuner.config import Config, Value
from tuner.kernels import cost
from tuner.kernels.tile_cost import Tile

TIMES = 1.35
"""How many times the cost model's least an estimate of it may be."""


def likely(
    points: Iterable[Config],
    tile: Callable[[Config], Tile],
    variants: Callable[[Config], Iterable[Mapping[str, Value]]],
) -> list[Config]:
    """Of what points of a space are expanded to, all whose estimate is within `TIMES` of the least.

    Args:
        points: of the space's axes.
        tile: of a point.
        variants: what expanding a point changes of it: SPLIT_K, num_stages and what else tells no tile from another.
    """
    found: list[tuple[float, Config, Mapping[str, Value]]] = []
    least_us = math.inf
    tiles = [(model, model.least_us(), point) for model, point in ((tile(point), point) for point in points)]
    for model, unsplit_us, point in sorted(tiles, key=lambda each: each[1]):
        for parameters in variants(point):
            if unsplit_us + model.split_us(int(parameters.get("SPLIT_K", 1))) <= TIMES * least_us:
                us = cost.of_tile(model, parameters)
                least_us = min(least_us, us)
                found.append((us, point, parameters))
    return [point.replace(**parameters) for us, point, parameters in found if us <= TIMES * least_us]
