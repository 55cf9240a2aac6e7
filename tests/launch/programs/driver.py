"""Open the driver over the stub: Triton has its C part compiled."""

from __future__ import annotations

import stub_driver

stub_driver.activate()
stub_driver.tell()
