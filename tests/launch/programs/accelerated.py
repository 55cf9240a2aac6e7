"""Call patched layers and a norm over the stub: plans, weights that move, and threads that share a model."""

from __future__ import annotations

import threading

import stub_driver
import stub_matmul
import torch
from torch import nn

from tuner.kernels.ops import matmul, rms_norm
from tuner.models import accelerate

stub_matmul.activate()
checked = []
for module in (matmul, rms_norm):
    module.checked_call = lambda *given, _run=module.checked_call, **named: (checked.append(1), _run(*given, **named))[
        1
    ]


class StepsNorm(nn.Module):
    """An RMSNorm as transformers has it."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.randn(64)), 1e-5

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class OffsetNorm(StepsNorm):
    """An RMSNorm as Gemma has it."""

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (wide * (1 + self.weight.float())).to(x.dtype)


norm, offset = StepsNorm().half(), OffsetNorm().half()
plain, biased = nn.Linear(64, 96, bias=False).half(), nn.Linear(64, 96).half()
model = nn.ModuleList([plain, biased, norm, offset])
accelerate(model, backend="tuner")
steps: list[dict[str, object]] = []


def call(layer, x, *, kind):
    """Call a layer, and note what its launch is to read and write."""
    result, bias = layer(x), getattr(layer, "bias", None)
    steps.append(
        {
            "kind": kind,
            "reads": stub_matmul.pointers(
                x, layer.weight, *([] if (bias := getattr(layer, "bias", None)) is None else [bias])
            ),
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

    for _ in range(2):
        kept.append(call(norm, torch.randn(2, 4, 64).half(), kind="rows"))
    norm.weight.data = torch.randn(64).half()
    kept.append(call(norm, x, kind="other rows"))
    kept.append(call(norm, x, kind="same rows"))
    for norm.eps in (1e-6, 1e-5):
        kept.append(call(norm, x, kind=f"eps {norm.eps}"))
    offset.weight = norm.weight
    for _ in range(2):
        kept.append(call(offset, x, kind="offset"))
        kept.append(call(norm, x, kind="none"))
    with torch.enable_grad():
        asked = norm(x)  # by its own forward, which launches nothing here
assert asked.requires_grad

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
