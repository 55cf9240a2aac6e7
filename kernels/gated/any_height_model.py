"""How long tiles of `gated_any_height` take."""

from __future__ import annotations

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.gemm.any_tile import any_height_model
from tuner.kernels.gemm.hopper import ping_pong_model
from tuner.problem import Problem

IN_TURN = ping_pong_model.Constants(
    column_cycles=0.614,
    start_us=2.1,
    port_bytes=64.1,
    stored_bytes=0.0,
    beyond_cycles=0.0,
    idle_gain=0.261,
    short_clock=1.0,
)
"""Of warpgroups that take tiles in turn (benchmarks/fit/gated_heights.py). A weight's 64 rows are a load of their own;
what is stored, half as much as of a product, told nothing."""


def modelled_us(inner: Config, computed: Problem, device: Device, *, in_turn: bool) -> float:
    """How long a config takes, microseconds.

    Args:
        inner: the config as the device computes it.
        computed: the product of both weights as one with x, as the device computes it.
        device: where.
        in_turn: whether warpgroups take tiles in turn. All others take what those of `any_height` do.
    """
    if in_turn:
        sides = inner.integer("BLOCK_SIZE_M"), inner.integer("BLOCK_SIZE_N")
        return ping_pong_model.modelled_us(*sides, computed, device, IN_TURN)
    return any_height_model.modelled_us(inner, computed, device, any_height_model.CONSTANTS)
