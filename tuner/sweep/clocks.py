"""The card's clock, power and throttle reasons, read through NVML and never changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

THROTTLED = 0x08 | 0x20 | 0x40 | 0x80
"""Throttle bits that spoil a measurement: hardware slowdown, software and hardware thermal, power brake.

The software power cap (0x04) is not among them: a large GEMM on a full card always meets it, and all contestants of a
round meet it alike. Source: NVML, `nvmlClocksEventReasons`.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the card; None where NVML does not tell."""

    sm_clock_mhz: int | None = None
    power_w: float | None = None
    throttle: int | None = None

    @property
    def flagged(self) -> bool:
        """Whether the card was slowed down in a way that spoils a measurement."""
        return bool((self.throttle or 0) & THROTTLED)


class Clocks:
    """Reads one GPU; gives empty readings where NVML is not there (AMD, the interpreter)."""

    def __init__(self, handle: Any = None) -> None:
        self._handle = handle

    def read(self) -> Reading:
        """Clock (MHz), power (W) and throttle bits now."""
        if self._handle is None:
            return Reading()
        import pynvml

        try:
            return Reading(
                pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM),
                pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
                pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle),
            )
        except pynvml.NVMLError:
            return Reading()


@contextlib.contextmanager
def watch(uuid: str | None) -> Iterator[Clocks]:
    """Clocks of the GPU with this UUID ("GPU-..."), for as long as the block runs; None reads nothing."""
    if uuid is None:
        yield Clocks()
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield Clocks()
        return
    handle = None
    with contextlib.suppress(pynvml.NVMLError):
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    try:
        yield Clocks(handle)
    finally:
        pynvml.nvmlShutdown()


def first_arch() -> str | None:
    """Architecture of the machine's first NVIDIA GPU ("sm_90"), asked without CUDA; None where NVML does not tell."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    return f"sm_{major}{minor}"


def driver_version() -> str:
    """The NVIDIA driver's version, "" where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ""
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()
