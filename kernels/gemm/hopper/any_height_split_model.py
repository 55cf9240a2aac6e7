"""How long a config of `any_height_split` takes."""

from __future__ import annotations

from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.cost.tile import memory_bytes_per_us
from tuner.kernels.gemm.hopper import resources
from tuner.kernels.space.refinements import NUM_CTAS, SHARE_B
from tuner.problem import Problem, dtype

_WGMMA_BYTES, _WGMMA_ROWS = 32, 64
"""What one wgmma multiplies: bytes of its operands along K, and rows of A (PTX ISA, wgmma.mma_async)."""
_WGMMA_CYCLES, _COLUMN_CYCLES = 5.0, 0.5
"""Cycles of a wgmma, and for each of its columns, at the tensor cores' peak."""
_LATENCY = 1000.0
"""Cycles from a load to its data."""
_SLOWEST = 3
"""The p of the p-norm of a step's times, which hide each other in part."""
_LEAST_SHARE = 0.85
"""The share of the multiprocessors that get no more of the L2's bandwidth than all of them."""
_ALONE, _PAIRED = 0.8, 0.9
"""The part of its loads that a multiprocessor waits for, and that where more than half of them run, so that some share
their TPC's port with a neighbour."""


class Constants(NamedTuple):
    """What `modelled_us` is fitted by (benchmarks/fit/any_height_split.py).

    Attributes:
        l2_bytes: bytes a cycle that the L2 sends each multiprocessor if all of them load, those for neighbours that
            load the same counted once.
        fill_bytes: bytes a cycle that a multiprocessor takes in.
        sent_bytes: bytes of sums a cycle that a block sends to others.
        start_us: first loads and last stores.
    """

    l2_bytes: float
    fill_bytes: float
    sent_bytes: float
    start_us: float


CONSTANTS = Constants(l2_bytes=42.0, fill_bytes=75.3, sent_bytes=11.0, start_us=1.61)


def modelled_us(inner: Config, computed: Problem, device: Device, by: Constants) -> float:
    """How long a config takes, microseconds, all of whose clusters run at once.

    Args:
        inner: the config as the device computes it (`any_height_tile.as_computed`).
        computed: the problem as the device computes it, whose operands are exchanged.
        device: where.
        by: the constants.
    """
    rows, columns = inner.integer("BLOCK_SIZE_M"), inner.integer("BLOCK_SIZE_N")
    splits, neighbours = inner.integer("SPLIT_K"), inner.integer(NUM_CTAS) // inner.integer("SPLIT_K")
    sent = (rows, columns / neighbours) if inner.get(SHARE_B, False) else (rows / neighbours, columns)
    share = resources.tiles(inner, computed) * splits / device.sm_count
    wgmmas = rows / _WGMMA_ROWS * (resources.ROW_BYTES / _WGMMA_BYTES)
    step = _norm(
        max(share, _LEAST_SHARE) * sum(sent) * resources.ROW_BYTES / by.l2_bytes,
        (_PAIRED if share > 1 / 2 else _ALONE) * (rows + columns) * resources.ROW_BYTES / by.fill_bytes,
        wgmmas * (_WGMMA_CYCLES + columns * _COLUMN_CYCLES),
        _LATENCY / max(1, inner.integer("num_stages") - 2),  # a stage is free when the next one is multiplied
    )
    steps = -(-computed.k * dtype.ITEMSIZE[computed.a_dtype] // (resources.ROW_BYTES * splits))
    exchanged = rows * columns * 4 * (splits - 1) / splits / by.sent_bytes
    memory_us = computed.bytes_moved / memory_bytes_per_us(device)
    return by.start_us + max(steps * step / device.sustained_mhz, memory_us) + exchanged / device.sustained_mhz


def _norm(*values: float) -> float:
    total: float = sum(value**_SLOWEST for value in values) ** (1 / _SLOWEST)
    return total
