"""How long tiles of `any_height` take that have all of few rows of A, or half, or that all run at once."""

from __future__ import annotations

from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.cost.norm import norm
from tuner.kernels.cost.tile import memory_bytes_per_us
from tuner.kernels.gemm.any_tile import any_width_space
from tuner.kernels.gemm.hopper import chunks, resources
from tuner.kernels.gemm.hopper.cluster_sizes import clusters_at_once
from tuner.kernels.space.refinements import NUM_CTAS, SHARE_B
from tuner.problem import Problem, dtype

_SLOWEST, _OVERLAP = 8, 3
"""The p of p-norms: of a step's times nearly the longest alone, and of products and device memory that hide each other,
unless both are nearly as long."""
_MET_ROWS = 224, 480
"""Rows of A from which on the meeting of a cluster counts, and counts in full (decision 162)."""
_SHARED_PORT = 0.9
"""The share of its loads' bandwidth that a multiprocessor takes at least where more than half of them run, so that some
share their TPC's port with a neighbour."""


class Constants(NamedTuple):
    """What `modelled_us` is fitted by (benchmarks/fit/any_height.py).

    Attributes:
        l2_bytes: bytes a cycle that the L2 sends a multiprocessor, those for a whole cluster counted once.
        fill_bytes: bytes a cycle that a multiprocessor takes in.
        wgmma_cycles: cycles of a wgmma beside those of its columns.
        column_cycles: cycles of a wgmma for each of its columns; half a one at the tensor cores' peak.
        latency: cycles from a load to its data.
        start_us: first loads and last stores.
        meeting_us: what clusters take besides, as all their warps meet before the first load. With few rows of A all
            wait for device memory anyway: it counts from `_MET_ROWS` on, by and by.
    """

    l2_bytes: float
    fill_bytes: float
    wgmma_cycles: float
    column_cycles: float
    latency: float
    start_us: float
    meeting_us: float


CONSTANTS = Constants(
    l2_bytes=77.0,
    fill_bytes=76.9,
    wgmma_cycles=5.23,
    column_cycles=0.517,
    latency=1374.0,
    start_us=2.49,
    meeting_us=0.8,
)


def modelled_us(inner: Config, computed: Problem, device: Device, by: Constants) -> float:
    """How long a config takes, microseconds.

    A step along K takes as long as the slowest of the L2, a multiprocessor's port, the tensor cores and a ring of this
    depth; and the steps of a wave of tiles overlap with device memory. The last wave may have few tiles.

    Args:
        inner: the config as the device computes it (`any_height_tile.as_computed`).
        computed: the problem as the device computes it, whose operands are exchanged.
        device: where.
        by: the constants.
    """
    rows, columns = inner.integer("BLOCK_SIZE_M"), inner.integer("BLOCK_SIZE_N")
    requested = chunks.requested(columns, computed)
    ctas, count = inner.integer(NUM_CTAS, 1), resources.tiles(inner, computed)
    at_once = ctas * clusters_at_once(ctas, device.sm_count)
    shares_columns = bool(inner.get(SHARE_B, False))
    loaded = rows + requested / ctas if shares_columns else rows / ctas + requested
    wgmmas = rows / resources.WGMMA_ROWS * (resources.ROW_BYTES / resources.WGMMA_BYTES)
    each = 2 if any_width_space.in_halves(inner) else 1
    multiplied = wgmmas * (each * by.wgmma_cycles + columns * by.column_cycles)
    awaited = by.latency / max(1, inner.integer("num_stages") - 2)  # a stage is free when the next one is multiplied
    steps = -(-computed.k * dtype.ITEMSIZE[computed.a_dtype] // resources.ROW_BYTES)
    memory_us = computed.bytes_moved / memory_bytes_per_us(device)
    fewest, most = _MET_ROWS
    met_us = by.meeting_us * min(1.0, max(0.0, (computed.n - fewest) / (most - fewest))) if ctas > 1 else 0.0

    def wave_us(running: int) -> float:
        share = running / device.sm_count
        loading = max(share, _SHARED_PORT if share > 1 / 2 else 1 / 2)
        sent, filled = (each * resources.ROW_BYTES for each in (loaded, rows + requested))
        loads = loading * sent / by.l2_bytes, loading * filled / by.fill_bytes
        cycles = steps * norm(_SLOWEST, *loads, multiplied, awaited)
        return norm(_OVERLAP, cycles / device.sustained_mhz + met_us, memory_us * running / count)

    full, rest = divmod(count, at_once)
    return by.start_us + full * wave_us(at_once) + (wave_us(rest) if rest else 0)
