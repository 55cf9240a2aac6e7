"""Call patched gated MLPs over the stub, at the Ms given, by a table's ranges if one is named; prints each call."""

from __future__ import annotations

import json
import sys

import stub_driver
import stub_matmul
import torch
from torch import nn

import tuner
from tuner.hardware import device
from tuner.kernels.ops import gated_linear
from tuner.models import accelerate

stub_matmul.activate()
device.current = lambda _index: device.KNOWN["sm_90"]
checked = []
gated_linear.checked_call = lambda *given, _run=gated_linear.checked_call, **named: (
    checked.append(1),
    _run(*given, **named),
)[1]


class Apart(nn.Module):
    """A gated MLP as Llama has it."""

    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(64, 128, bias=False), nn.Linear(64, 128, bias=False)
        self.down_proj, self.act_fn = nn.Linear(128, 64, bias=False), nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    def weights(self):
        return self.gate_proj.weight, self.up_proj.weight


class Joined(nn.Module):
    """A gated MLP as Phi 3 has it."""

    def __init__(self):
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(64, 256, bias=False), nn.Linear(128, 64, bias=False)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(nn.functional.silu(gate) * up)

    def weights(self):
        return self.gate_up_proj.weight.chunk(2)


backend, *ms = json.loads(sys.argv[1])
for path in sys.argv[2:]:
    tuner.use(path)
blocks = nn.ModuleList([Apart(), Joined()]).half()
done = accelerate(blocks, backend=backend)
steps: list[dict[str, object]] = []
kept = []


def call(block, x, *, kind):
    """Call a block, and note what its first launch is to read."""
    result = block(x)
    kept.extend((x, result))
    steps.append({"kind": kind, "reads": stub_matmul.pointers(x, *block.weights()), "checked": len(checked)})


with torch.no_grad():
    for block in blocks:
        for m in ms:
            call(block, torch.randn(m, 64).half(), kind=f"new x of {m}")
        x = torch.randn(ms[0], 64).half()
        for _ in range(2):
            call(block, x, kind="same x")
        for name, layer in block.named_children():
            if name != "down_proj" and isinstance(layer, nn.Linear):
                layer.weight.data = torch.randn_like(layer.weight)
        call(block, x, kind="moved weights")
        call(block, x[None], kind="one of rows")
        call(block, x[None], kind="again")
stub_driver.tell(steps=steps, mlps=done.mlps, exchanged=done.exchanged)
