"""Launch kernels of a library that asks for the driver as it is imported. The program knows nothing of triton-tuner.

What the arguments name is imported first, before Triton.
"""

from __future__ import annotations

import importlib
import sys

for name in sys.argv[1:]:
    importlib.import_module(name)
import stub_driver  # noqa: E402
import torch  # noqa: E402
from triton.runtime import driver  # noqa: E402

compiles = stub_driver.find_gpu()
import library.hardware  # noqa: E402

x, y = torch.ones(2048), torch.empty(2048)
for size in (1000, 1024, 1000):
    library.double[(8,)](x, y, size, BLOCK=128)
library.negate[(8,)](x, y, 1000)
shipped = compiles.compiled
library.double[(8,)](x, y, 1000, BLOCK=256)
stub_driver.tell(
    backend=library.hardware.BACKEND,
    shared_bytes=driver.active.utils.get_device_properties(0)["max_shared_mem"],
    shipped=shipped,
    compiled=compiles.compiled,
    adopted="tuner" in sys.modules,
)
