"""A result file: what was measured, on which device, under which versions, when, and by which command."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any


def header() -> dict[str, Any]:
    """Device, versions, date and command of this process; no CUDA context is opened."""
    import pynvml
    import torch
    import triton

    import tuner

    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        gpus = list(map(pynvml.nvmlDeviceGetName, handles))
        driver = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        gpus, driver = [], ""
    return {
        "gpus": gpus,
        "driver": driver,
        "cpu_cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "triton_tuner": tuner.__version__,
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%d"),
        "command": " ".join(["python", *sys.argv]),
    }


def write(path: str | Path, body: dict[str, Any]) -> None:
    """Write header and body as JSON; rows that are dataclasses become objects."""
    document = {**header(), **body}
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1, default=_plain) + "\n")


def geomean(ratios: list[float]) -> float:
    """Geometric mean, 0 of nothing."""
    return statistics.geometric_mean(ratios) if ratios else 0.0


def _plain(value: Any) -> Any:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else str(value)
