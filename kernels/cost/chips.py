"""What the cost model reckons with of a device: its clock, its multiply-adds, and what its memory reaches."""

from __future__ import annotations

from typing import NamedTuple

from tuner.hardware.device import Device


class Chip(NamedTuple):
    """Of a device: clock in MHz, 16-bit multiply-adds of a multiprocessor a cycle, memory in bytes a us."""

    mhz: float
    macs: int
    memory: float


MEMORY_SHARE = 0.9375
"""The share of the peak bandwidth that the fastest kernels reach: fitted on an H200."""


def chip_of(device: Device) -> Chip:
    """The device's own, or its architecture's where the driver did not say."""
    return Chip(device.sustained_mhz, device.features.macs, MEMORY_SHARE * device.peak_bytes_per_us)
