"""Launch autotuned kernels of a library over the stub: served, not tuned, not adopted, undone."""

from __future__ import annotations

import os
import sys

import stub_driver
import torch
import triton

import tuner
from tuner.hardware import device
from tuner.launch import compat

os.environ["CUDA_STUB_SHARED"] = "16"  # warps that sum together need shared memory, eight more than there is
compiles = stub_driver.activate()
device.current = lambda _index=None: device.KNOWN["sm_90"]
before = [vars(compat.Autotuner)[name] for name in compat.AUTOTUNER_ASKS]
measured: list[str] = []


def bench(call, quantiles):
    """Time a config as Triton's own benchmark would: by a launch."""
    call()
    measured.append("a config")
    return [float(len(measured))] * 3


def grid(meta: dict[str, int]) -> tuple[int]:
    return (triton.cdiv(meta["N"], meta["BLOCK"]),)


def launch(kernel, *arguments):
    """What a launch measured, which config it took, and how many functions of ours it called."""
    measured.clear()
    called: list[str] = []

    def note(frame, event, _arg):
        if event == "call" and frame.f_globals.get("__name__", "").startswith("tuner."):
            called.append(frame.f_code.co_name)

    sys.setprofile(note)
    kernel[grid](*arguments)
    sys.setprofile(None)
    return [len(measured), kernel.best_config.kwargs["BLOCK"], kernel.best_config.num_warps, bool(called)]


tuner.use(sys.argv[1])
on_miss = sys.argv[2]
adoption = tuner.adopt("library", on_miss=on_miss)
import library  # noqa: E402

for kernel in (library.scale, library.shift, library.summed):
    kernel._do_bench = bench
x, y = torch.ones(2048), torch.full((2048,), 7.0)
told = {}
told["served"] = [launch(library.scale, x, y, 1, 1000, 2.5) for _ in range(2)]
told["own subclass"] = [launch(library.shift, x, y, 1000) for _ in range(2)]
told["zeroed"] = float(y.sum()) == 0.0
told["own calls"] = library.calls
told["missed"] = [launch(library.scale, x, y, 1, 500, 2.5) for _ in range(2)]
told["does not launch"] = [launch(library.summed, x, y, 64) for _ in range(2)]
kept = {key: config.num_warps for key, config in library.scale.cache.items()}
compiled = compiles.compiled
adoption.undo()
adoption.undo()
told["kept"] = [len(kept), len(library.scale.cache)]
told["as it was"] = before == [vars(compat.Autotuner)[name] for name in compat.AUTOTUNER_ASKS]
told["undone"] = launch(library.scale, x, y, 1, 1000, 2.5)
stub_driver.tell(**told, compiled=compiled)
