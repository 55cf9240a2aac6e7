"""Launch an adopted kernel in a process that compiles and measures nothing."""

from __future__ import annotations

import sys

import library
import stub_driver
import torch

import tuner

compiles = stub_driver.find_gpu()
tuner.use(sys.argv[1])
tuner.strict()
x, y = torch.empty(2048), torch.empty(2048)


def refuse(*_: object) -> None:
    raise AssertionError("it was measured")


def blocks(*arguments: object) -> object:
    """The block of the config that launched, or what was said instead."""
    library.scale._do_bench = refuse
    try:
        library.scale[(8,)](*arguments)
    except tuner.TunerError as e:
        return str(e)
    return library.scale.best_config.kwargs["BLOCK"]


with tuner.adopt("library"):
    served = [blocks(x, y, 1, size, 2.5) for size in (1000, 1000, 500)]
    missing = [blocks(x, y, 2, 1000, 2.5), blocks(x.double(), y, 1, 1000, 2.5)]
launchers = {type(kernel.run).__name__ for kernel in library.scale.fn.device_caches[0][0].values()}
stub_driver.tell(launchers=sorted(launchers), served=served, missing=missing, compiled=compiles.compiled)
