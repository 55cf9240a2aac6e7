"""Which of a device's two roofs a problem meets first: arithmetic or memory."""

from __future__ import annotations

from tuner.hardware.device import Device
from tuner.problem import Problem
from tuner.problem.dtype import ITEMSIZE

_OF_16_BIT = {1: 2.0, 2: 1.0, 4: 1 / 16}
"""Rate of operands of so many bytes, against 16-bit ones: tensor cores for 8 bits, plain ones for IEEE float32."""
_TF32 = 0.5


def is_memory_bound(problem: Problem, flops: int, bytes_moved: int, device: Device) -> bool:
    """Whether moving the bytes takes longer than the arithmetic, each at the device's peak.

    Args:
        problem: what is computed; its dtype decides the peak.
        flops, bytes_moved: of one call.
        device: where.
    """
    tensor_cores = problem.precision in ("tf32", "tf32x3")
    speed = _TF32 if tensor_cores else _OF_16_BIT[ITEMSIZE[problem.a_dtype]]
    flops_per_us = 2 * device.features.macs * device.sm_count * device.sustained_mhz
    return flops / (flops_per_us * speed) < bytes_moved / device.peak_bytes_per_us
