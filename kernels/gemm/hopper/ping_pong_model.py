"""How long kernels take whose two warpgroups take tiles in turn: `ping_pong` and `any_height_ping_pong`."""

from __future__ import annotations

from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernels.cost.tile import memory_bytes_per_us
from tuner.kernels.gemm.hopper.resources import ROW_BYTES
from tuner.problem import Problem, dtype

_WGMMA_BYTES, _WGMMA_ROWS = 32, 64
"""What one wgmma multiplies: bytes of its operands along K, and rows of A (PTX ISA, wgmma.mma_async)."""
_SHARPNESS = 3
"""The p of a p-norm: the longer of products and device memory hides the other, unless both are nearly as long."""


class Constants(NamedTuple):
    """What `modelled_us` is fitted by (benchmarks/fit/ping_pong.py).

    Attributes:
        column_cycles: cycles of a wgmma for each of its columns; half a one at the tensor cores' peak.
        start_us: first loads and last stores.
        memory_share: of the bandwidth that the fastest kernels reach.
        idle_gain: by how much the clock rises where all multiprocessors idle, per share of them that does.
        short_clock: the clock for 8-bit operands over that for others: both run at the power limit.

    They are fitted together, and none of them is what the hardware's documents say.
    """

    column_cycles: float
    start_us: float
    memory_share: float
    idle_gain: float
    short_clock: float


CONSTANTS = Constants(column_cycles=0.595, start_us=1.53, memory_share=0.803, idle_gain=0.351, short_clock=0.951)


def modelled_us(rows: int, width: int, computed: Problem, device: Device, by: Constants) -> float:
    """How long tiles take, microseconds.

    The tensor cores of the busiest multiprocessor multiply at the clock that power leaves them, or device memory is
    slower. Whatever else a tile costs hides behind the products of the next; neither the L2 nor shared memory, and no
    tile's storing, told anything in the trials.

    Args:
        rows, width: of a tile as the device computes it.
        computed: the problem as the device computes it, whose operands may be exchanged.
        device: where.
        by: the constants.
    """
    row_bytes = computed.k * dtype.ITEMSIZE[computed.a_dtype]
    wgmmas = rows / _WGMMA_ROWS * ROW_BYTES / _WGMMA_BYTES
    tiles = -(-computed.m // rows) * -(-computed.n // width)
    each = -(-tiles // device.sm_count)
    cycles = each * -(-row_bytes // ROW_BYTES) * wgmmas * width * by.column_cycles
    clock = device.sustained_mhz * (by.short_clock if dtype.ITEMSIZE[computed.a_dtype] == 1 else 1.0)
    clock *= 1 + by.idle_gain * (1 - tiles / (each * device.sm_count))
    memory_us = computed.bytes_moved / (memory_bytes_per_us(device) * by.memory_share)
    overlapped: float = ((cycles / clock) ** _SHARPNESS + memory_us**_SHARPNESS) ** (1 / _SHARPNESS)
    return by.start_us + overlapped
