"""One short round of benchmarks/launch_cost.py, over the stub."""

from __future__ import annotations

import sys
from pathlib import Path

import stub_driver
import stub_matmul

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
stub_matmul.activate()
import launch_cost  # noqa: E402  after the stub is in its place

launch_cost.BURST = 2
stub_driver.tell(figures=launch_cost.host_us("cpu", 3, lambda: None))
