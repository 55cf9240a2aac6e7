"""Call a compiled layer over the stub, and say how many of each call's operators torch's dispatcher saw."""

from __future__ import annotations

import stub_driver
import stub_matmul
import torch
from torch.profiler import ProfilerActivity, profile

from tuner.models import accelerate

stub_matmul.activate()
layer = torch.nn.Linear(64, 96).half().requires_grad_(False)
accelerate(layer, backend="tuner")
compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
x, alike = (stub_matmul.half(8, 64) for _ in range(2))
seen, kept = [], []
for mode in (torch.no_grad, torch.inference_mode):
    with mode():
        for given in (x, x, alike):
            with profile(activities=[ProfilerActivity.CPU], acc_events=True) as profiler:
                kept.append(compiled(given))
            seen.append(sum(each.name == "triton_tuner::linear" for each in profiler.events()))
stub_driver.tell(seen=seen)
