"""Compile the kernel of a library that the table on the command line is for, beside the table."""

from __future__ import annotations

import sys
from pathlib import Path

import library
import stub_driver
import torch

import tuner
from tuner.adopt.kernel import kernel_of
from tuner.lookup import table
from tuner.sweep import cross_target
from tuner.tables import binaries

x = torch.empty(2048)
kernel_of(library.scale).arguments_factory.make_inputs = lambda problem: tuner.Arguments(
    (8,), (x, torch.empty_like(x), 1, problem["N"], 2.5), outputs=["y"]
)
path = Path(sys.argv[1])
loaded = table.load(path)
cross_target.activate(loaded.device.arch)
written = binaries.write(loaded, path.parent)
stub_driver.tell(kernels=written.kernels, failed=written.failed)
