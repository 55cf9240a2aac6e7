"""Launch a small kernel a few times and print what Triton compiled for it."""

from __future__ import annotations

import stub_driver
import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, y, count, factor, BLOCK: tl.constexpr, offset):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(y + at, tl.load(x + at, mask=inside) * factor + offset, mask=inside)


compiles = stub_driver.activate()
x, y = torch.empty(1000), torch.empty(1000)
seen = []
for count in (1000, 1000, 999):
    scale[(triton.cdiv(count, 256),)](x, y, count, 2.5, 256, 40_000, num_warps=8)
    seen.append(compiles.compiled)
refused = ""
try:
    scale[(4,)](x, y, 1000)
except TypeError as e:
    refused = str(e)
stub_driver.tell(
    compiled_after_each=seen,
    from_cache=compiles.from_cache,
    pointers=[x.data_ptr(), y.data_ptr()],
    refused=refused,
)
