"""What NVIDIA's driver says of a GPU while torch is still being imported: enough to begin a search with."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

from tuner.hardware.device import Device, from_properties
from tuner.launch import cuda

_NAME_BYTES = 256
# CUdevice_attribute of the driver API, by the names of torch's properties.
_ATTRIBUTES = {
    "major": 75,
    "minor": 76,
    "multi_processor_count": 16,
    "L2_cache_size": 38,
    "shared_memory_per_block_optin": 97,
    "clock_rate": 13,
    "memory_clock_rate": 36,
    "memory_bus_width": 37,
}


def sight(gpu: int) -> Device | None:
    """Return the GPU of a CUDA index as torch will describe it; None where NVIDIA's driver does not show it.

    This initializes the driver and opens no context.
    """
    driver = cuda.library()
    device = ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), gpu):
        return None
    name, memory, found = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t(), ctypes.c_int()
    codes = [
        driver.cuDeviceGetName(name, _NAME_BYTES, device),
        driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device),
    ]
    properties = SimpleNamespace(name=name.value.decode(), total_memory=memory.value)
    for attribute, number in _ATTRIBUTES.items():
        codes.append(driver.cuDeviceGetAttribute(ctypes.byref(found), number, device))
        setattr(properties, attribute, found.value)
    return None if any(codes) else from_properties(properties)
