"""The cost model: how long a config takes, in microseconds, before anything is compiled.

A roofline, refined by what tells tiles apart: how the tiles fill the multiprocessors, what one step along K waits for,
what grouped tiles read again from device memory, what splitting K costs. Each of these is a term, worked out in one
place, `tuner.kernels.cost.terms`, and what the calibration weighs are the same terms. The model ranks; docs/search.md
says how well, on recorded landscapes (benchmarks/claims/cost_model.py). Its shape follows tritonBLAS (Origami) and
DeepGEMM's heuristics; constants marked "fitted" are rounded from a fit on the landscapes of an H200 that the file there
does not hold out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernels.cost.terms import Terms, least_us, terms_of
from tuner.kernels.cost.tile import Loop, Sides, Tile, tile_of
from tuner.kernels.space import refinements
from tuner.problem import Problem

TIMES = 1.35
"""How many times the cost model's least an estimate may be for a calibrated formula to look at the config closely."""


def terms(config: Config, problem: Problem, device: Device, loop: Loop) -> Terms:
    """The estimate of a kernel of tiles and its terms, of the config and the problem as the device sees them."""
    return of_tile(tile_of(Sides.of(config), loop, problem, device), config)


def tiled(
    config: Config,
    problem: Problem,
    device: Device,
    *,
    by_tma: bool | None = None,
    persistent: bool = False,
    products: int = 1,
) -> float:
    """The estimate alone, in microseconds.

    Args:
        config: its tile, BLOCK_SIZE_N_REST and SPLIT_K where it has them.
        problem: what is computed, as the device sees it.
        device: where.
        by_tma: whether descriptors load; None where the config's LOADS says so.
        persistent, products: see `Loop`.
    """
    by_tma = config.get("LOADS") == "tma" if by_tma is None else by_tma
    loop = Loop(by_tma, persistent, products=products)
    return terms(config, problem, device, loop).us


def of_tile(tile: Tile, parameters: Mapping[str, Value], added_cycles: float = 0.0) -> Terms:
    """The terms of a tile, with the other parameters of a config."""
    return terms_of(
        tile,
        int(parameters.get("SPLIT_K", 1)),
        int(parameters.get("num_stages", 1)),
        group=int(parameters.get("GROUP_SIZE_M", 1)),
        late=parameters.get(refinements.PDL_TRIGGER) == refinements.AFTER_LAST_STEP,
        added_cycles=added_cycles,
    )


class Candidates(NamedTuple):
    """A tile and all that it is expanded to.

    Attributes:
        point: of a space's axes.
        tile: its model.
        splits: every SPLIT_K.
        variants: of these each, what expanding the point changes.
        added_cycles: to each step along K.
    """

    point: Config
    tile: Tile
    splits: Sequence[int]
    variants: Callable[[int], Iterable[Mapping[str, Value]]]
    added_cycles: float = 0.0


def near_least(tiles: Iterable[Candidates]) -> dict[Config, Terms]:
    """All configs of some tiles whose estimate is within `TIMES` of the least, with their terms."""
    found: list[tuple[Terms, Config, Mapping[str, Value]]] = []
    least = math.inf
    # The fastest first: by the bound of what they can be at best, most others need not be expanded.
    for one in sorted(tiles, key=lambda one: least_us(one.tile, 1)):
        for splits in one.splits:
            if least_us(one.tile, splits) <= TIMES * least:
                for parameters in one.variants(splits):
                    estimated = of_tile(one.tile, parameters, one.added_cycles)
                    least = min(least, estimated.us)
                    found.append((estimated, one.point, parameters))
    return {
        point.replace(**parameters): estimated
        for estimated, point, parameters in found
        if estimated.us <= TIMES * least
    }
