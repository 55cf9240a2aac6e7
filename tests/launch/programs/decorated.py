"""One short round of benchmarks/decorated_cost.py, over the stub."""

from __future__ import annotations

import sys
from pathlib import Path

import stub_driver

from tuner import device

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
stub_driver.activate()
device.current = lambda _index=None: device.KNOWN["sm_90"]
import decorated_cost  # noqa: E402  after the stub is in its place
import launch_cost  # noqa: E402

launch_cost.BURST = int(sys.argv[1])
stub_driver.tell(figures=decorated_cost.host_us("cpu", int(sys.argv[2]), lambda: None))
