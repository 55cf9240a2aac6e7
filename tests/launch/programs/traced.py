"""Trace launches of autotuned kernels under torch.compile over the stub, and tell which configs the graphs hold."""

from __future__ import annotations

import sys

import library
import stub_driver
import torch
import triton
from decorated import scale
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


told = {"tuned": [blocks(scale), blocks(scale, dynamic=True)], "plain": blocks(library.scale)}
with tuner.adopt("library"):
    told["adopted"] = [blocks(library.scale), blocks(library.scale, dynamic=True), blocks(library.scale, size=500)]
with tuner.adopt("library", on_miss="first"):
    told["first"] = blocks(library.scale, size=500)
told["undone"] = blocks(library.scale)
for choose in (traced.choose_tuned, traced.choose_tuned):
    traced.stop_asking(choose)
told["as it was"] = [hasattr(compat.TritonHOPifier.call_triton_kernel, "__wrapped__"), blocks(scale)]
stub_driver.tell(**told)
