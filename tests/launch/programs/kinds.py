"""Launch a kernel with a number of every type, and one that is given a tuple.

With `late` as the first argument by the driver that `tuner` makes active, else by Triton's own.
"""

from __future__ import annotations

import sys

import stub_driver
import torch
import triton
import triton.language as tl


@triton.jit
def kinds(
    out,
    signed: tl.int8,
    wide: tl.int16,
    unsigned: tl.uint8,
    middle: tl.uint32,
    half: tl.float16,
    brain: tl.bfloat16,
    double: tl.float64,
    single,
    truth,
    large,
    nothing,
    BLOCK: tl.constexpr,
):
    at = out + tl.arange(0, BLOCK)
    tl.store(at, signed + wide + half + brain + double + single)
    tl.store(at + BLOCK, unsigned.to(tl.float32) + middle + truth + large)


@triton.jit
def paired(out, pair):
    tl.store(out, pair[0] + pair[1])


compiles = stub_driver.activate(late=sys.argv[1:] == ["late"])
out = torch.empty(256)
for single, truth in ((1e300, True), (-2.5, False), (0.0, True), (-0.0, True)):
    kinds[(3, 2)](out, -5, -300, 200, 2**31 + 7, 0.1, 0.1, 0.1, single, truth, 2**63 + 5, None, 64)
kinds[(0,)](out, 1, 1, 1, 2, 0.5, 0.5, 0.5, 0.5, True, 2**63 + 5, None, 64)
unreachable = ""
try:
    paired[(1,)](out, (2.5, 3.5))
except Exception as e:  # noqa: BLE001  whatever it is, the test reads it
    unreachable = f"{type(e).__name__}: {e}"
stub_driver.tell(pointer=out.data_ptr(), compiled=compiles.compiled, unreachable=unreachable)
