"""Run ops of a library whose kernels have no autotuner: captured into a folder, or served from one."""

from __future__ import annotations

import sys

import stub_driver
import torch

import tuner

does, name, folder = sys.argv[1:]
compiles = stub_driver.find_gpu()


def liger_kernel() -> None:
    """Rotate, and normalize forward and backward; nothing runs, so what comes of it says nothing."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.rope import LigerRopeFunction

    x, w = torch.ones(64, 256, requires_grad=True), torch.ones(256, requires_grad=True)
    LigerRMSNormFunction.apply(x, w, 1e-6, 0.0, "llama", True).sum().backward()
    heads, angles = torch.ones(1, 2, 8, 64), torch.ones(1, 8, 64)
    LigerRopeFunction.apply(heads, heads.clone(), angles, angles.clone())


def fla() -> None:
    """Step through a gated delta rule. As it is imported, fla asks for the driver and sizes blocks by it."""
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule
    from fla.utils import IS_NVIDIA, check_shared_mem

    assert IS_NVIDIA
    assert check_shared_mem("hopper")
    heads = torch.ones(1, 4, 2, 64)
    with torch.no_grad():
        fused_recurrent_gated_delta_rule(heads, heads, heads, g=torch.ones(1, 4, 2), beta=torch.ones(1, 4, 2))


if does == "capture":
    with tuner.capture(folder, name):
        globals()[name]()
else:
    tuner.use(folder)
    tuner.adopt(name)
    globals()[name]()
stub_driver.tell(compiled=compiles.compiled)
