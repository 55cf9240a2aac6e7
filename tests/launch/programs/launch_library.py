"""Launch kernels of a library for which no config is chosen: captured into a folder, or served from one."""

from __future__ import annotations

import sys

import library
import stub_driver
import torch
from triton.runtime import driver

import tuner
from tuner.launch import compat

does, folder = sys.argv[1:]
compiles = stub_driver.find_gpu()
x, y = torch.ones(2048), torch.empty(2048)


def launched() -> None:
    """Launch each kernel by the same keys in every process."""
    for size in (1000, 1024, 1000):
        library.double[(8,)](x, y, size, BLOCK=128)
    library.negate[(8,)](x, y, 1000)


def other() -> str:
    """Launch by a key that was not captured; return what was said instead."""
    try:
        library.double[(8,)](x.double(), y, 1000, BLOCK=128)
    except tuner.TunerError as e:
        return str(e)
    return ""


if does == "capture":
    with tuner.capture(folder, "library"):
        launched()
        library.scale[(8,)](x, y, 1, 1000, 2.5)
    library.double[(8,)](x, y, 1000, BLOCK=256)  # after the block
    stub_driver.tell(compiled=compiles.compiled)
    sys.exit()

of_triton = vars(compat.JITFunction)[compat.COMPILES]
makes_driver = vars(compat.driver_module)[compat.MAKES_DRIVER]
tuner.use(folder)
adoption = tuner.adopt("library")
import library.hardware  # noqa: E402

launched()
found = {"compiled": compiles.compiled, "from_cache": compiles.from_cache}
called: set[str] = set()
sys.setprofile(lambda frame, event, _: called.add(frame.f_globals.get("__name__", "")) if event == "call" else None)
launched()
sys.setprofile(None)
found["for known keys"] = sorted(name for name in called if name.startswith("tuner."))
with tuner.adopt("library"):  # a second one, undone at once
    library.double[(8,)](x, y, 1000, BLOCK=128, num_warps=4)
found["missing"] = other()
found["backend"] = library.hardware.BACKEND
found["module"] = type(vars(driver.active).get("utils")).__name__
found["stays"] = vars(compat.JITFunction)[compat.COMPILES] is not of_triton
adoption.undo()
binder = library.double.device_caches.default_factory
found["as it was"] = (
    vars(compat.JITFunction)[compat.COMPILES] is of_triton
    and vars(compat.driver_module)[compat.MAKES_DRIVER] is makes_driver
    and binder == library.double.create_binder
    and library.double.compile.__module__ == "triton.compiler.compiler"
)
stub_driver.tell(**found)
