"""Run ops of Liger, whose kernels have no autotuner: captured into a folder, or served from one."""

from __future__ import annotations

import sys

import stub_driver
import torch

import tuner
from tuner.hardware import device

does, folder = sys.argv[1:]
compiles = stub_driver.activate(late=does == "serve")
device.current = lambda _index=None: device.KNOWN["sm_90"]


def work() -> None:
    """Rotate, and normalize forward and backward; nothing runs, so what comes of it says nothing."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.rope import LigerRopeFunction

    x, w = torch.ones(64, 256, requires_grad=True), torch.ones(256, requires_grad=True)
    LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", True).sum().backward()
    heads, angles = torch.ones(1, 2, 8, 64), torch.ones(1, 8, 64)
    LigerRopeFunction.apply(heads, heads.clone(), angles, angles.clone())


if does == "capture":
    with tuner.capture(folder, "liger_kernel"):
        work()
else:
    tuner.use(folder)
    tuner.adopt("liger_kernel")
    work()
stub_driver.tell(compiled=compiles.compiled)
