"""Imports torch, Triton and every kernel, and prints what it finds as one JSON document.

`tuner doctor` runs this in a child process with a time limit, because a broken driver may hang and a broken package may
abort.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

from tuner.kernel import registry


def main() -> None:
    """Print what is installed."""
    kernels = [_kernel(point) for point in registry.points()]
    report = {"torch": _try(_torch), "triton": _try(_triton), "kernels": kernels}
    sys.stdout.write(f"\n{json.dumps(report)}\n")


def _try(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return look()
    except Exception as e:  # noqa: BLE001  the boundary of a child process: whatever an import raised is reported
        return {"error": f"{type(e).__name__}: {e}"}


def _torch() -> dict[str, Any]:
    import torch

    from tuner.hardware.device import from_properties

    version = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [from_properties(torch.cuda.get_device_properties(index)) for index in range(count)]
    return version | {"devices": [{"slug": device.slug, "name": device.name} for device in devices]}


def _triton() -> dict[str, Any]:
    import triton
    from triton import knobs

    return {"version": triton.__version__, "cuobjdump": knobs.nvidia.cuobjdump.path}


def _kernel(point: EntryPoint) -> dict[str, Any]:
    specs, faults = registry.used(point)
    listed = [f"{spec.op}/{spec.name} version {spec.version}" for spec in specs]
    return {"name": point.name, "value": point.value, "specs": listed, "faults": faults}
