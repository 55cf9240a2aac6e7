"""Trace launches of autotuned kernels under torch.compile over the stub, and tell which configs the graphs hold."""

from __future__ import annotations

import sys

import library
import stub_driver
import torch
import triton
from decorated import scale
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._higher_order_ops import triton_kernel_wrap
from torch.utils import _triton

import tuner
from tuner.hardware import device
from tuner.launch import compat
from tuner.tuned import traced

stub_driver.activate()
device.current = lambda _index=None: device.KNOWN["sm_90"]
_triton.has_triton = lambda: True  # as with a GPU
tuner.use(sys.argv[1])
held: list[list[int]] = []


def backend(graph, _inputs):
    """Note the configs of every kernel in a graph; one of several would be measured, so nothing runs."""
    for node in graph.graph.nodes:
        if "kernel_idx" in node.kwargs:
            kernel = triton_kernel_wrap.kernel_side_table.get_kernel(node.kwargs["kernel_idx"])
            held.append([config.kwargs["BLOCK"] for config in kernel.configs])
    (returned,) = (node.args[0] for node in graph.graph.nodes if node.op == "output")
    return lambda *_: tuple(torch.zeros(1) for _ in returned)


def part(graph, inputs):
    """The same of the forward or the backward half of a graph; what passes between them is of any size."""
    backend(graph, inputs)
    (returned,) = (node.args[0] for node in graph.graph.nodes if node.op == "output")
    values = [None if each is None else each.meta["val"] for each in returned]
    kinds = [type(each) for each in values]
    made = {torch.SymInt: lambda: 1000, type(None): lambda: None}
    return make_boxed_func(lambda *_: [made.get(kind, lambda: torch.zeros(1000))() for kind in kinds])


def blocks(kernel, *, size: int = 1000, dynamic: bool = False) -> list[int]:
    """The BLOCKs of the one kernel of a function that is traced whole."""
    torch._dynamo.reset()
    held.clear()

    @torch.compile(fullgraph=True, backend=backend, dynamic=dynamic)
    def compute(x, y):
        kernel[lambda meta: (triton.cdiv(x.shape[0], meta["BLOCK"]),)](x, y, 1, x.shape[0], 2.5)
        return y

    compute(torch.ones(size), torch.zeros(size))
    (found,) = held
    return found


def blocks_of_both_ways(kernel, *, dynamic: bool = False) -> list[list[int]]:
    """The BLOCKs of the kernels of a function that is traced forward and backward."""
    torch._dynamo.reset()
    held.clear()

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.empty_like(x)
            kernel[lambda meta: (triton.cdiv(x.shape[0], meta["BLOCK"]),)](x, y, 1, x.shape[0], 2.5)
            return y

        @staticmethod
        def backward(ctx, dy):
            dx = torch.empty_like(dy)
            kernel[lambda meta: (triton.cdiv(dy.shape[0], meta["BLOCK"]),)](dy, dx, 1, dy.shape[0], 2.5)
            return dx

    halves = aot_autograd(fw_compiler=part, bw_compiler=part)

    @torch.compile(fullgraph=True, backend=halves, dynamic=dynamic)
    def compute(x):
        return Scaled.apply(x)

    compute(torch.ones(1000, requires_grad=True)).sum().backward()
    return list(held)


told = {"tuned": [blocks(scale), blocks(scale, dynamic=True)], "plain": blocks(library.scale)}
with tuner.adopt("library"):
    told["adopted"] = [blocks(library.scale), blocks(library.scale, dynamic=True), blocks(library.scale, size=500)]
    told["both ways"] = [
        blocks_of_both_ways(kernel, dynamic=dynamic) for kernel in (scale, library.scale) for dynamic in (False, True)
    ]
with tuner.adopt("library", on_miss="first"):
    told["first"] = blocks(library.scale, size=500)


def looks(configs, named, **_):
    return configs if named["x"].stride(0) == named["y"].dim() == 1 else []


def fails(configs, named, **_):
    assert type(named["x"]).__name__ != "TracedTensor"
    return configs


for name, prune in {"looked at": looks, "failed": fails}.items():
    pruning = triton.autotune(library.scale.configs, key=["N"], prune_configs_by={"early_config_prune": prune})
    with tuner.adopt("library"):
        told[name] = [blocks(pruning(library.scale.fn)) for _ in range(2)]
told["undone"] = blocks(library.scale)
for choose in (traced.choose_tuned, traced.choose_tuned):
    traced.stop_asking(choose)
told["as it was"] = [hasattr(compat.TritonHOPifier.call_triton_kernel, "__wrapped__"), blocks(scale)]
with tuner.adopt("library"):
    told["again"] = blocks(library.scale)
stub_driver.tell(**told)
