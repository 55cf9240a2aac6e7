"""What NVML tells of GPUs without opening a CUDA context: how many, which, and their state. Nothing is changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

THROTTLED = 0x08 | 0x20 | 0x40 | 0x80
"""Throttle bits that spoil a measurement: hardware slowdown, software and hardware thermal, power brake.

The software power cap (0x04) is not among them: a large GEMM always reaches it, and it slows all contestants of a round
alike. Source: NVML, `nvmlClocksEventReasons`.
"""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """A GPU's state at one moment; None where NVML does not tell. A trial's `Outcome` keeps these fields."""

    sm_clock_mhz: int | None = None
    power_w: float | None = None
    throttle: int | None = None
    """Why the clock is low, in the bits of NVML's `nvmlClocksEventReasons`."""

    @property
    def throttled(self) -> bool:
        """Whether the GPU was slowed down in a way that spoils a measurement: by a bit of `THROTTLED`."""
        return bool((self.throttle or 0) & THROTTLED)


class GpuMonitor:
    """Reads one GPU's state between rounds; gives empty samples where there is no NVML (AMD, the interpreter)."""

    def __init__(self, handle: Any = None) -> None:
        self._handle = handle

    def read(self) -> GpuSample:
        """Return the clock (MHz), power (W) and throttle bits of this moment."""
        if self._handle is None:
            return GpuSample()
        import pynvml

        def ask(query: Callable[..., int], *which: int) -> int | None:
            # Each by itself: a virtual GPU tells no power, and is throttled all the same.
            try:
                return query(self._handle, *which)
            except pynvml.NVMLError:
                return None

        power_mw = ask(pynvml.nvmlDeviceGetPowerUsage)
        return GpuSample(
            ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
            None if power_mw is None else power_mw / 1000,
            ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons),
        )


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Yield pynvml, initialized for the block; None where there is no driver. NVML's errors end the block quietly."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        with contextlib.suppress(pynvml.NVMLError):
            yield pynvml
    finally:
        pynvml.nvmlShutdown()


@contextlib.contextmanager
def open_monitor(uuid: str | None) -> Iterator[GpuMonitor]:
    """Yield the monitor of the GPU with this UUID ("GPU-..."); None gives empty samples."""
    if uuid is None:
        yield GpuMonitor()
        return
    with _nvml() as nvml:
        handle = None
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        yield GpuMonitor(handle)


def first_arch() -> str | None:
    """Return the architecture of the machine's first NVIDIA GPU ("sm_90"); None where NVML does not tell."""
    with _nvml() as nvml:
        if nvml is not None:
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(nvml.nvmlDeviceGetHandleByIndex(0))
            return f"sm_{major}{minor}"
    return None


def driver_version() -> str:
    """Return the NVIDIA driver's version, "" where there is none."""
    with _nvml() as nvml:
        if nvml is not None:
            return str(nvml.nvmlSystemGetDriverVersion())
    return ""


def gpu_names() -> list[str]:
    """Return the names of the GPUs that NVIDIA's driver shows."""
    with _nvml() as nvml:
        if nvml is not None:
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            return [str(nvml.nvmlDeviceGetName(handle)) for handle in handles]
    return []


def gpu_count() -> int | None:
    """Return how many GPUs CUDA shows to this process; None where only torch can tell, whose import takes a second.

    Only torch can tell without NVML, with a torch that is not built for CUDA, under Triton's interpreter, with MIG, and
    where CUDA_VISIBLE_DEVICES holds anything but integers.
    """
    if os.environ.get("TRITON_INTERPRET", "0") != "0" or not _torch_takes_cuda():
        return None
    found = _whole_gpus()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if found is None or listed is None:
        return found
    indices = [part.strip() for part in listed.split(",")]
    if not all(part.isdecimal() for part in indices) or len(set(indices)) < len(indices):
        return None
    # CUDA C++ Programming Guide, CUDA environment variables: GPUs after an index that does not exist are hidden.
    there = [int(part) < found for part in indices]
    return there.index(False) if False in there else len(there)


def _torch_takes_cuda() -> bool:
    """Judge by torch's version, for instance "2.13.0+cpu"; the CUDA builds on PyPI have no suffix."""
    suffix = metadata.version("torch").partition("+")[2]
    return suffix == "" or suffix.startswith("cu")


def _whole_gpus() -> int | None:
    """Return how many GPUs there are, None where NVML does not tell or one is divided by MIG."""
    with _nvml() as nvml:
        if nvml is not None:
            count = int(nvml.nvmlDeviceGetCount())
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(count))
            return None if any(_is_divided(nvml, handle) for handle in handles) else count
    return None


def _is_divided(nvml: Any, handle: object) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError_NotSupported:
        return False
