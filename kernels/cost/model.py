"""The cost model: how long a config takes, in microseconds, before anything is compiled.

A roofline, refined by what tells tiles apart: how the tiles fill the multiprocessors, what one step along K waits for,
what grouped tiles read again from device memory, what splitting K costs. It ranks; docs/search.md says how well, on
recorded landscapes (benchmarks/claims/cost_model.py). The shape of it follows tritonBLAS (Origami) and DeepGEMM's
heuristics; constants marked "fitted" are rounded from a fit on the landscapes of an H200 that the file there does not
hold out.
"""

from __future__ import annotations

from collections.abc import Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernels.cost.tile import Loop, Sides, Tile, tile_of
from tuner.kernels.space import refinements
from tuner.problem import Problem


def tiled(
    config: Config,
    problem: Problem,
    device: Device,
    *,
    by_tma: bool | None = None,
    persistent: bool = False,
    specialized: bool = False,
    products: int = 1,
    added_cycles: float = 0.0,
) -> float:
    """Microseconds of a kernel of tiles, of the problem as the kernel sees it.

    Args:
        config: its tile, BLOCK_SIZE_N_REST and SPLIT_K where it has them.
        problem: what is computed.
        device: where.
        by_tma: whether descriptors load; None where the config's LOADS says so.
        persistent: whether programs take tile after tile.
        specialized: whether one warp of a program loads, and others multiply.
        products: how many such products one launch computes; `problem.bytes_moved` is of all of them.
        added_cycles: to each step along K, of what its products wait for.
    """
    by_tma = config.get("LOADS") == "tma" if by_tma is None else by_tma
    tile = tile_of(Sides.of(config), Loop(by_tma, persistent, specialized, products), problem, device)
    return of_tile(tile, config, added_cycles)


def of_tile(tile: Tile, parameters: Mapping[str, Value], added_cycles: float = 0.0) -> float:
    """The same of a tile, with the other parameters of a config."""
    return tile.us(
        int(parameters.get("SPLIT_K", 1)),
        int(parameters.get("num_stages", 1)),
        group=int(parameters.get("GROUP_SIZE_M", 1)),
        late=parameters.get(refinements.PDL_TRIGGER) == refinements.AFTER_LAST_STEP,
        added_cycles=added_cycles,
    )
