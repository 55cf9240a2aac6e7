"""How long a config of `any_height_split` takes."""

from __future__ import annotations

from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import exchanged
from tuner.kernels.cost.norm import norm
from tuner.kernels.cost.tile import memory_bytes_per_us
from tuner.kernels.gemm.any_tile import scaled_steps
from tuner.kernels.gemm.hopper import chunks
from tuner.kernels.gemm.hopper.cluster_sizes import clusters_at_once
from tuner.kernels.gemm.hopper.resources import ROW_BYTES, WGMMA_BYTES, WGMMA_ROWS
from tuner.kernels.space.refinements import NUM_CTAS, SHARE_B
from tuner.problem import Problem, dtype

_WGMMA_CYCLES, _COLUMN_CYCLES = 5.0, 0.5
"""Cycles of a wgmma, and for each of its columns, at the tensor cores' peak."""
_LATENCY = 1000.0
"""Cycles from a load to its data."""
_SLOWEST, _SLOWER = 3, 4
"""The p of the p-norm of a step's times, which hide each other in part, and of all steps' and the memory's."""
_LEAST_SHARE = 0.85
"""The share of the multiprocessors that get no more of the L2's bandwidth than all of them."""
_ALONE, _PAIRED = 0.8, 0.9
"""The part of its loads that a multiprocessor waits for, and that where more than half of them run, so that some share
their TPC's port with a neighbour."""


class _Widths(NamedTuple):
    """What `scaled_steps.has_two_sets` reads of a kernel's constants. The tile's columns are the device's rows."""

    WARPGROUPS: int
    BLOCK_SIZE_N: int


class Tile(NamedTuple):
    """A tile and the cluster that computes it.

    Attributes:
        rows, columns: of A and of B; the device computes the transposed output.
        splits: blocks that share its sum.
        neighbours: tiles of a cluster, side by side along N, or along M with `share_b`.
        share_b: whether neighbours load the same columns of B, and not the same rows of A.
        stages: of the ring.
    """

    rows: int
    columns: int
    splits: int
    neighbours: int
    share_b: bool
    stages: int

    @classmethod
    def of(cls, config: Config) -> Tile:
        """A config's."""
        splits = config.integer("SPLIT_K")
        return cls(
            config.integer("BLOCK_SIZE_M"),
            config.integer("BLOCK_SIZE_N"),
            splits,
            config.integer(NUM_CTAS, 1) // splits,
            bool(config.get(SHARE_B, False)),
            config.integer("num_stages"),
        )

    @property
    def ctas(self) -> int:
        """Blocks of its cluster."""
        return self.splits * self.neighbours

    @property
    def has_two_sets(self) -> bool:
        """Whether one step's products are scaled while the next is multiplied, with block scales."""
        return bool(scaled_steps.has_two_sets(_Widths(self.columns // WGMMA_ROWS, self.rows)))

    def count(self, problem: Problem) -> int:
        """How many cover a problem's output."""
        return -(-problem.m // self.rows) * -(-problem.n // self.columns)

    def clusters(self, problem: Problem) -> int:
        """How many compute them."""
        down, across = -(-problem.m // self.rows), -(-problem.n // self.columns)
        return -(-down // self.neighbours) * across if self.share_b else down * -(-across // self.neighbours)


class Constants(NamedTuple):
    """What `modelled_us` is fitted by (benchmarks/fit/any_height_split.py; with block scales block_scaled.py).

    Attributes:
        l2_bytes: bytes a cycle that the L2 sends each multiprocessor if all of them load, those for neighbours that
            load the same counted once.
        fill_bytes: bytes a cycle that a multiprocessor takes in.
        sent_bytes: bytes of sums a cycle that a block sends to others.
        start_us: first loads and last stores.
        memory: how many times as long device memory takes as its bandwidth says.
        split_cycles: what splitting a sum takes, besides what is sent.
        scaled_cycles: cycles of a step for each row of A where nothing is multiplied while products are scaled.
    """

    l2_bytes: float
    fill_bytes: float
    sent_bytes: float
    start_us: float
    memory: float = 1.0
    split_cycles: float = 0.0
    scaled_cycles: float = 0.0


CONSTANTS = Constants(l2_bytes=47.3, fill_bytes=85.6, sent_bytes=10.05, start_us=2.16)
SCALED = Constants(
    l2_bytes=54.2,
    fill_bytes=42.4,
    sent_bytes=8.77,
    start_us=1.88,
    memory=1.1,
    split_cycles=1055.0,
    scaled_cycles=2.35,
)
"""The same with block scales."""


def constants_of(problem: Problem) -> Constants:
    """Those for a problem."""
    return SCALED if problem.scaling == "block" else CONSTANTS


def modelled_us(tile: Tile, problem: Problem, device: Device, by: Constants) -> float:
    """How long a tile's config takes, microseconds; it was fitted where all clusters run at once."""
    rows, columns, splits, neighbours, share_b, stages = tile
    requested = chunks.requested(rows, exchanged(problem))
    loaded = requested / (1 if share_b else neighbours) + columns / (neighbours if share_b else 1)
    share = min(1.0, tile.count(problem) * splits / device.sm_count)
    wgmmas = columns / WGMMA_ROWS * (ROW_BYTES / WGMMA_BYTES)
    idle = rows * by.scaled_cycles if by.scaled_cycles and not tile.has_two_sets else 0.0
    step = norm(
        _SLOWEST,
        max(share, _LEAST_SHARE) * loaded * ROW_BYTES / by.l2_bytes,
        (_PAIRED if share > 1 / 2 else _ALONE) * (requested + columns) * ROW_BYTES / by.fill_bytes,
        wgmmas * (_WGMMA_CYCLES + rows * _COLUMN_CYCLES) + idle,
        _LATENCY / max(1, stages - 2),  # a stage is free when the next one is multiplied
    )
    steps = -(-problem.k * dtype.ITEMSIZE[problem.a_dtype] // (ROW_BYTES * splits))
    # In a cluster a block passes a sum that it does not share to itself.
    parts = (splits - 1) / splits if splits > 1 else float(tile.ctas > 1)
    sent = rows * columns * 4 * parts / by.sent_bytes + (splits > 1) * by.split_cycles
    memory_us = by.memory * problem.bytes_moved / memory_bytes_per_us(device)
    waves = -(-tile.clusters(problem) // clusters_at_once(splits * neighbours, device.sm_count))
    steps_us, sent_us = (waves * cycles / device.sustained_mhz for cycles in (steps * step, sent))
    return by.start_us + norm(_SLOWER, steps_us, memory_us) + sent_us
