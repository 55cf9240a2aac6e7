"""One short round of benchmarks/launch_cost.py and of decorated_cost.py, over the stub."""

from __future__ import annotations

import sys
from pathlib import Path

import stub_driver
import stub_matmul

from tuner.hardware import device

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
stub_matmul.activate()
import decorated_cost  # noqa: E402  after the stub is in its place
import launch_cost  # noqa: E402

launch_cost.BURST = 2
figures = launch_cost.host_us("cpu", 3, lambda: None)
device.current = lambda _index=None: device.KNOWN["sm_90"]
stub_driver.tell(figures=figures, decorated=decorated_cost.host_us("cpu", 3, lambda: None))
