"""How long kernels take whose two warpgroups take tiles in turn: `ping_pong` and `any_height_ping_pong`."""

from __future__ import annotations

from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernels.cost.norm import norm
from tuner.kernels.gemm.hopper import chunks
from tuner.kernels.gemm.hopper.resources import ROW_BYTES, WGMMA_BYTES, WGMMA_ROWS
from tuner.kernels.space import odd_rows
from tuner.problem import Problem, dtype

_SHARPNESS = 6
"""The p of a p-norm: the longer of a tile's products and traffic hides the other, unless both are nearly as long."""
_BESIDE_OTHERS = 0.98
"""What estimates are multiplied by where an operand is not stored along K, as other kernels' are too low there.

Chosen by what defaults lose, by hand from benchmarks/results/layouts-again-h200.json (decision 162; not kept): of 32
gradients of weights that no other constant was fitted to 1.7% without it, 1.2% with it.
"""
_CROSSING = 2.3
"""How many times as much as `chunks.awaited` says B's rows that cross lines cost beyond others.

Chosen by the draws of decision 173. No other tile hides what a program waits for."""
_ODD_ROWS = 1.34
"""How much longer tiles take where an operand's rows lie at odd multiples of 16 bytes, beside what their loads take.

Of 20 products drawn in four layouts, configs on an H200 took 1.46 times as long as estimated without it, 1.00 with it,
single ones 0.8 to 1.3 times (1 December 2026, by hand, not kept).
"""


class Constants(NamedTuple):
    """What `modelled_us` is fitted by (benchmarks/fit/ping_pong.py).

    Attributes:
        column_cycles: cycles of a wgmma for each of its columns; half a one at the tensor cores' peak.
        start_us: first loads and last stores.
        port_bytes: bytes that a multiprocessor loads in a cycle.
        stored_bytes: how many loaded bytes take as long as a stored one.
        beyond_cycles: cycles of a row of a chunk that lies beyond the end of K, where TMA loads nothing.
        idle_gain: by how much the clock rises where all multiprocessors idle, per share of them that does.
        short_clock: the clock for 8-bit operands over that for others: both run at the power limit.

    They are fitted together, and none of them is what the hardware's documents say.
    """

    column_cycles: float
    start_us: float
    port_bytes: float
    stored_bytes: float
    beyond_cycles: float
    idle_gain: float
    short_clock: float


CONSTANTS = Constants(
    column_cycles=0.594,
    start_us=2.74,
    port_bytes=99.3,
    stored_bytes=5.74,
    beyond_cycles=5.59,
    idle_gain=0.396,
    short_clock=0.969,
)


def estimate_us(rows: int, width: int, computed: Problem, device: Device) -> float:
    """How long tiles take, microseconds, beside what other kernels estimate; see `modelled_us`."""
    us = modelled_us(rows, width, computed, device, CONSTANTS)
    return us if computed.layout == "nt" else us * _BESIDE_OTHERS


def modelled_us(rows: int, width: int, computed: Problem, device: Device, by: Constants) -> float:
    """How long tiles take, microseconds.

    The busiest multiprocessor multiplies at the clock that power leaves it, or loads and stores, if tiles are small or
    K is short. Device memory, slower than these for hardly any problem of so many rows, told nothing in the trials.

    Args:
        rows, width: of a tile as the device computes it.
        computed: the problem as the device computes it, whose operands may be exchanged.
        device: where.
        by: the constants.
    """
    size = dtype.ITEMSIZE[computed.a_dtype]
    steps, tiles = -(-computed.k * size // ROW_BYTES), -(-computed.m // rows) * -(-computed.n // width)
    each = -(-tiles // device.sm_count)
    multiplied = steps * rows / WGMMA_ROWS * ROW_BYTES / WGMMA_BYTES * width * by.column_cycles
    stored = rows * width * dtype.ITEMSIZE[computed.out_dtype] * by.stored_bytes
    columns = chunks.loaded(width, computed)
    loaded = odd_rows.requested(computed, rows, columns, ROW_BYTES // size, ctas=1, share_b=False)
    moved = (steps * loaded * ROW_BYTES + stored) / by.port_bytes
    moved += _rows_beyond(rows, width, computed) * by.beyond_cycles
    cycles = each * norm(_SHARPNESS, multiplied, moved)
    cycles *= _ODD_ROWS if any(odd_rows.odd(computed)) else 1.0
    clock = device.sustained_mhz * (by.short_clock if size == 1 else 1.0)
    clock *= 1 + by.idle_gain * (1 - tiles / (each * device.sm_count))
    return by.start_us + cycles / clock


def slowed(rows: int, width: int, computed: Problem) -> float:
    """How many times as long a tile takes because B's rows cross lines: 1 if its products hide their loads.

    Also 1 if rows are odd, which all models count that this corrects.
    """
    multiplied = rows / WGMMA_ROWS * ROW_BYTES / WGMMA_BYTES * width * CONSTANTS.column_cycles
    loaded = chunks.loaded(width, computed)
    more = 0.0 if odd_rows.odd(computed)[1] else _CROSSING * (chunks.awaited(width, computed) - loaded)

    def step(columns: float) -> float:
        return norm(_SHARPNESS, multiplied, (rows + columns) * ROW_BYTES / CONSTANTS.port_bytes)

    return step(loaded + more) / step(loaded)


def _rows_beyond(rows: int, width: int, computed: Problem) -> float:
    """Rows of chunks that lie beyond the end of K, in the last step of a tile."""
    across = rows * (computed.layout[0] == "t") + width * (computed.layout[1] == "n")
    return across / chunks.CHUNK * (-computed.k % (ROW_BYTES // dtype.ITEMSIZE[computed.a_dtype]))
