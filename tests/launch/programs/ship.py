"""Compile the kernels of the tables named on the command line, without any driver, beside them."""

from __future__ import annotations

import sys
from pathlib import Path

import decorated  # noqa: F401  registers its kernel
import stub_driver

from tuner.lookup import table
from tuner.sweep import cross_target
from tuner.tables import binaries

written = []
for path in map(Path, sys.argv[1:]):
    loaded = table.load(path)
    cross_target.activate(loaded.device.arch)
    written.append(binaries.write(loaded, path.parent))
stub_driver.tell(
    paths=[str(one.path) for one in written],
    kernels=[one.kernels for one in written],
    nbytes=[one.nbytes for one in written],
    failed=[one.failed for one in written],
)
