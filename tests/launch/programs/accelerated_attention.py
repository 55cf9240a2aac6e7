"""Call patched attention over the stub, with one row, with two and with three; prints each call."""

from __future__ import annotations

import stub_driver
import stub_matmul
import torch
from torch import nn

from tuner.hardware import device
from tuner.kernels.ops import dispatch
from tuner.models import accelerate

stub_matmul.activate()
device.current = lambda _index: device.KNOWN["sm_90"]
checked = []
dispatch.launch = lambda *given, _launch=dispatch.launch: (checked.append(1), _launch(*given))[1]


class Attention(nn.Module):
    """The products of attention; what they are made into needs no launch."""

    def __init__(self, *, bias):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(64, n, bias=bias) for n in (128, 64, 64))

    def forward(self, hidden_states):
        return self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)

    def reads(self):
        layers = (self.q_proj, self.k_proj, self.v_proj)
        return [each for layer in layers for each in (layer.weight, layer.bias) if each is not None]


blocks = nn.ModuleList([Attention(bias=False), Attention(bias=True)]).half()
done = accelerate(blocks, backend="tuner")
steps: list[dict[str, object]] = []
kept = []


def call(block, x, *, kind):
    """Call a block, and note what its launches are to read and to write."""
    found = block(x)
    kept.extend((x, *found))
    reads, writes = stub_matmul.pointers(x, *block.reads()), stub_matmul.pointers(*found)
    shapes = [[*each.shape, each.is_contiguous()] for each in found]
    steps.append({"kind": kind, "reads": reads, "writes": writes, "shapes": shapes, "checked": len(checked)})


with torch.no_grad():
    for block in blocks:
        for m in (1, 2):
            call(block, torch.randn(1, m, 64).half(), kind=f"{m} rows")
            call(block, torch.randn(1, m, 64).half(), kind=f"{m} rows elsewhere")
        x = torch.randn(2, 1, 64).half()
        for kind in ("two of one", "two of one again"):
            call(block, x, kind=kind)
        for layer in block.children():
            layer.weight.data = torch.randn_like(layer.weight)
        call(block, x, kind="moved weights")
    launches = len(steps)
    call(blocks[0], torch.randn(1, 3, 64).half(), kind="3 rows")
stub_driver.tell(steps=steps, merged=launches, attentions=done.attentions)
