"""What tells one state of the cost model from another: a hash of the features that it gives to a few probes.

Forests are fitted on features, and mean nothing to a model that gives others. The hash is of what the model computes,
constants and the table of architectures included, so that comments, names and formatting leave it as it is.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping

from tuner.hardware.device import KNOWN
from tuner.kernel.config import Config, Value
from tuner.kernels.cost import features, stream
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.terms import SCALING_CYCLES
from tuner.kernels.cost.tile import Loop, Sides, tile_of, tile_of_few_rows
from tuner.kernels.space import refinements
from tuner.problem import Problem

_DEVICE = KNOWN["sm_90"]
"""The device of the probes."""
_SHAPES = ((4096, 16, 14336), (6144, 72, 4096), (37888, 68, 3584), (512, 8192, 1024), (3008, 2880, 4096))
"""M, N and K as the device sees them; operands that the L2 holds, and others."""
_TILES = ((64, 16, 0, 128, 4), (64, 64, 0, 64, 4), (128, 128, 64, 64, 8), (128, 256, 0, 128, 8))
"""BLOCK_SIZE_M, N, N_REST and K, and num_warps."""
_LOOPS = (
    ("swap_ab", Loop(by_tma=True, exchanged=True)),
    ("swap_ab", Loop(by_tma=False, exchanged=True)),
    ("cluster_k", Loop(by_tma=True, in_cluster=True, exchanged=True)),
    ("warp_specialized", Loop(by_tma=True, persistent=True, specialized=True)),
)
_OF_BLOCKS = (
    ("block_scaled", Loop(by_tma=False, exchanged=True), 64),
    ("block_scaled", Loop(by_tma=False), 16),
    ("block_scaled_warp_specialized", Loop(by_tma=True, persistent=True, specialized=True), 8),
)
"""Kernels of operands with block scales, and rows of their tiles."""
_LATE = {refinements.PDL_TRIGGER: refinements.AFTER_LAST_STEP, "num_stages": 3}
_VARIANTS: tuple[Mapping[str, Value], ...] = (
    {"num_stages": 1},
    _LATE,
    {"num_stages": 6, "SPLIT_K": 4},
    {"num_stages": 4, "GROUP_SIZE_M": 8, refinements.NUM_CTAS: 2, refinements.SHARE_B: True},
)
_DIGITS = 4


@functools.cache
def fingerprint() -> str:
    """The hash of this model."""
    lines = (f"{name} {value:.{_DIGITS}f}" for found in _probed() for name, value in sorted(found.items()))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _probed() -> Iterator[Mapping[str, float]]:
    """Features of the probes: every shape and loop, tiles and pipelines in turn."""
    for place, (m, n, k) in enumerate(_SHAPES):
        problem = Problem(m, n, k, dtype="bf16", layout="nt")
        for turn, (kernel, loop) in enumerate(_LOOPS):
            rows, columns, rest, length, warps = _TILES[(place + turn) % len(_TILES)]
            sides = {"BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": columns, "BLOCK_SIZE_N_REST": rest, "BLOCK_SIZE_K": length}
            config = Config(kernel, **{**sides, "num_warps": warps, **_variant(place, turn)})
            terms = cost.terms(config, problem, _DEVICE, loop)
            yield features.of_tiles(terms, config, problem, _DEVICE, exchanged=loop.exchanged)
        few = problem.with_shape(1 + place, m, k)
        config = Config("gemv", BLOCK_SIZE_N=1 << place, BLOCK_SIZE_K=1024 >> place, SPLIT_K=1 + place % 2, num_warps=2)
        yield features.of_streams(config, few, _DEVICE, stream.streamed(config, few, _DEVICE))
        scaled = Problem(m, n, k, dtype="e4m3", layout="nt", scaling="block")
        for turn, (kernel, loop, rows) in enumerate(_OF_BLOCKS):
            sides = {"BLOCK_SIZE_M": rows, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128}
            config = Config(kernel, **{**sides, "num_warps": 4, **_variant(place, turn)})
            if loop.specialized:
                terms = cost.of_tile(tile_of_few_rows(Sides.of(config), loop, scaled, _DEVICE), config)
            else:
                terms = cost.of_tile(tile_of(Sides.of(config), loop, scaled, _DEVICE), config, SCALING_CYCLES)
            yield features.of_tiles(terms, config, scaled, _DEVICE, exchanged=loop.exchanged)


def _variant(place: int, turn: int) -> Mapping[str, Value]:
    return _VARIANTS[(2 * place + turn) % len(_VARIANTS)]
