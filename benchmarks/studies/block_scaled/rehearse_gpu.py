"""Rehearse `check` and `timed` of block.py on the CPU: kernels are replaced by the reference, the GPU's calls by nothing."""

import contextlib
import types

import block
import torch
import variants

import tuner.kernels.gemm.vendor as vendor_module
from tuner.kernels.base import numerics
from tuner.sweep import timer

props = types.SimpleNamespace(L2_cache_size=1 << 20, multi_processor_count=132)
torch.cuda.get_device_properties = lambda i: props
torch.cuda.get_device_name = lambda i: "none"
torch.cuda.synchronize = lambda: None
torch.cuda.Stream = lambda: None
torch.cuda.stream = lambda s: contextlib.nullcontext()
timer.GraphTimer = lambda l2: timer.HostTimer()


def ref(inputs):
    inputs.out.copy_(numerics.reference(inputs))


vendor_module.vendor = ref
real = block.spec_of


class Spec:
    def __init__(self, s):
        self.s = s

    def make_inputs(self, p, d, seed):
        return self.s.make_inputs(p, "cpu", seed)

    def launch(self, i, c):
        ref(i)

    def __getattr__(self, n):
        return getattr(self.s, n)


block.spec_of = lambda n: Spec(real(n))


class Kernel:
    def __getitem__(self, grid):
        def call(*a, **k):
            a_desc, b_desc, fine, coarse, c = a[:5]
            left = (
                a_desc.base.double() * fine.base.t().double().repeat_interleave(128, 1)
                if not k["SWAPPED"]
                else a_desc.base.double() * coarse.base.double().repeat_interleave(128, 1).repeat_interleave(128, 0)
            )
            right = (
                b_desc.base.double() * fine.base.t().double().repeat_interleave(128, 1)
                if k["SWAPPED"]
                else b_desc.base.double() * coarse.base.double().repeat_interleave(128, 1).repeat_interleave(128, 0)
            )
            r = left @ right.t()
            c.base.copy_(r.t() if k["SWAPPED"] else r)

        return call


import kernels

kernels.staged_kernel = Kernel()
block.LAUNCHES = 1
block.ROUNDS = 2
block.CHECKED[0] = ((512, 256, 512),)
block.CHECKED[64] = ((64, 256, 512),)
for m, names in ((0, list(variants.VARIANTS)[:3]), (64, list(variants.SMALL[64])[:2] + ["swap"])):
    for name in names:
        print(name)
        block.check(m, name)
block.timed(512, 256, 512, ["staged", "staged@4", "pair"], ["bare"])
block.timed(64, 256, 512, ["swap", "rows"], [])
