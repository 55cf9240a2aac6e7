"""How many GPUs this process may use, asked of NVML: torch would tell as well, but takes a second to import."""

from __future__ import annotations

import os
from importlib import metadata


def gpu_count() -> int | None:
    """GPUs that CUDA shows to this process; None where only torch can tell.

    That is without NVML, with a torch that is not built for CUDA, under Triton's interpreter, with MIG, and where
    CUDA_VISIBLE_DEVICES holds anything but whole numbers.
    """
    if os.environ.get("TRITON_INTERPRET", "0") != "0" or not _torch_takes_cuda():
        return None
    found = _count()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if found is None or listed is None:
        return found
    indices = [part.strip() for part in listed.split(",")]
    if not all(part.isdecimal() for part in indices) or len(set(indices)) < len(indices):
        return None
    # CUDA C++ Programming Guide, CUDA environment variables: what follows an index that is not there is not seen.
    there = [int(part) < found for part in indices]
    return there.index(False) if False in there else len(there)


def _torch_takes_cuda() -> bool:
    """By its version, "2.13.0+cpu"; the CUDA builds of PyPI have no suffix."""
    suffix = metadata.version("torch").partition("+")[2]
    return suffix == "" or suffix.startswith("cu")


def _count() -> int | None:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        count = int(pynvml.nvmlDeviceGetCount())
        return None if any(_sliced(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)) else count
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _sliced(handle: object) -> bool:
    import pynvml

    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError_NotSupported:
        return False
