"""What the cost model knows of architectures: clocks and rates."""

from __future__ import annotations

from typing import NamedTuple

from tuner.hardware.device import Device


class Chip(NamedTuple):
    """Of an architecture: clock in MHz, 16-bit multiply-adds of a multiprocessor a cycle, memory in bytes a us."""

    mhz: float
    macs: int
    memory: float


_CHIPS = {
    "sm_80": Chip(1410, 1024, 1.9e6),
    "sm_86": Chip(1700, 512, 0.72e6),
    "sm_89": Chip(2500, 512, 0.81e6),
    "sm_90": Chip(1755, 2048, 4.5e6),
    "sm_100": Chip(1850, 4096, 7.5e6),
    "sm_103": Chip(1900, 4096, 7.5e6),
    "gfx942": Chip(2100, 1024, 5.0e6),
    "gfx950": Chip(2400, 2048, 7.5e6),
}
"""Clocks and rates: the vendors' data sheets and white papers (A100, RTX A6000, L40S, H200, B200, MI300X, MI355X).
Memory is 0.94 of the data sheet's, fitted for the H200."""
_UNKNOWN = Chip(1700, 1024, 2e6)


def chip_of(device: Device) -> Chip:
    """The device's architecture; of an unknown one, something between."""
    return _CHIPS.get(device.arch, _UNKNOWN)
