"""Triton's own CUDA driver over the stub: only what it would ask torch for (device, stream) is answered here."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from triton import knobs
from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils
from triton.runtime import driver

STREAM = 7
"""A stream that is not the default one, so that a test sees it arrive."""


class StubDriver(CudaDriver):
    """CudaDriver's __init__ binds torch.cuda's getters, which a torch without CUDA does not have."""

    def __init__(self) -> None:
        self.utils = CudaUtils()
        self.launcher_cls = CudaLauncher
        tell_of_stub(self)


torch._C._cuda_getCurrentRawStream = lambda _device: STREAM
torch._C._cuda_getDevice = lambda: 0


def tell_of_stub(made: Any) -> None:
    """Give a driver the getters that it would take from torch; a program may have it answer otherwise."""
    made.get_device_capability = lambda _device=None: (9, 0)
    made.get_current_stream = lambda _device=None: STREAM
    made.get_current_device = lambda: 0
    made.set_current_device = lambda _device: None
    # Plans ask torch.
    torch._C._cuda_getCurrentRawStream = lambda device: made.get_current_stream(device)  # noqa: PLW0108
    torch._C._cuda_getDevice = lambda: made.get_current_device()  # noqa: PLW0108


def late_driver() -> Any:
    """The driver that `tuner` makes active where none is yet."""
    from tuner.launch.nvidia_driver import NvidiaDriver

    made = NvidiaDriver()
    tell_of_stub(made)
    return made


class Compiles:
    """Counts what Triton compiled, and what it took from its cache on disk instead."""

    def __init__(self) -> None:
        self.compiled = 0
        self.from_cache = 0

    def __call__(self, *, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            self.from_cache += 1
        else:
            self.compiled += 1


def activate(*, late: bool = False) -> Compiles:
    """Make the stub this process's driver; count compiles from now on."""
    driver.set_active(late_driver() if late else StubDriver())
    return count()


def find_gpu() -> Compiles:
    """Have torch say that an H200 is there, so that Triton makes a driver by itself; count compiles from now on."""
    about = {"name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 141 << 30}
    about |= {"L2_cache_size": 60 << 20, "shared_memory_per_block": 49_152, "shared_memory_per_block_optin": 232_448}
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "is_current_stream_capturing": False,
        "current_stream": SimpleNamespace(cuda_stream=STREAM),
        "get_device_capability": (9, 0),
        "get_device_name": "NVIDIA H200",
        "get_device_properties": SimpleNamespace(**about),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    return count()


def count() -> Compiles:
    """Count compiles from now on."""
    counter = Compiles()
    knobs.compilation.listener = counter
    return counter


def tell(**findings: Any) -> None:
    """Hand findings to the test: one line of JSON on stdout."""
    sys.stdout.write(json.dumps(findings) + "\n")
