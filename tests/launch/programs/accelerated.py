"""Call exchanged layers over the stub: plans, weights that move, and threads that share a model."""

from __future__ import annotations

import threading

import stub_driver
import stub_matmul
import torch
from torch import nn

from tuner.kernels.ops import matmul
from tuner.models import accelerate

stub_matmul.activate()
checked = []
run_checked = matmul.checked_call
matmul.checked_call = lambda *given, **named: (checked.append(1), run_checked(*given, **named))[1]

plain, biased = nn.Linear(64, 96, bias=False).half(), nn.Linear(64, 96).half()
model = nn.ModuleList([plain, biased])
accelerate(model, backend="tuner")
steps: list[dict[str, object]] = []


def call(layer, x, *, kind):
    """Call a layer, and note what its launch is to read and write."""
    result = layer(x)
    steps.append(
        {
            "kind": kind,
            "reads": stub_matmul.pointers(x, layer.weight, *([] if layer.bias is None else [layer.bias])),
            "writes": result.data_ptr(),
            "checked": len(checked),
        }
    )
    return result


kept = []
with torch.no_grad():
    for layer in (plain, biased):
        for _ in range(3):
            kept.append(call(layer, torch.randn(8, 64).half(), kind="new x"))
        x = torch.randn(8, 64).half()
        for _ in range(3):
            kept.append(call(layer, x, kind="same x"))
        layer.weight.data = torch.randn(96, 64).half()
        kept.append(call(layer, x, kind="moved weight"))
        layer.weight = nn.Parameter(torch.randn(96, 64).half())
        kept.append(call(layer, x, kind="new weight"))
        layer.weight.data = layer.weight.data.t().contiguous().t()
        kept.append(call(layer, x, kind="transposed weight"))

lock, shared = threading.Lock(), []


def serve():
    x = torch.randn(4, 64).half()
    with torch.no_grad():
        for _ in range(20):
            result = biased(x)
            with lock:
                shared.append([*stub_matmul.pointers(x, biased.weight, biased.bias), result.data_ptr()])
                kept.extend((x, result))


threads = [threading.Thread(target=serve) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
stub_driver.tell(steps=steps, shared=shared)
