"""Which of a device's two roofs a problem meets first: arithmetic or memory."""

from __future__ import annotations

from tuner.hardware.device import Device
from tuner.problem import Problem
from tuner.problem.dtype import ITEMSIZE

BALANCE = {
    "sm_80": 312_000 / 2_039,
    "sm_89": 362_000 / 864,
    "sm_90": 989_000 / 4_800,
    "sm_100": 2_250_000 / 8_000,
    "gfx942": 1_307_000 / 5_300,
    "gfx950": 2_500_000 / 8_000,
}
"""Dense 16-bit operations a byte of device memory, by arch: GFLOP/s over GB/s.

Source: data sheets of the A100 80GB SXM, L40S, H200 SXM, B200 (HGX), MI300X and MI355X.
"""
_ELSEWHERE = 250.0
"""Of an architecture that is not listed: the middle of those that are. It decides only which figure a table shows."""
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
    return flops < BALANCE.get(device.arch, _ELSEWHERE) * speed * bytes_moved
