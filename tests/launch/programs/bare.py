"""Call every op twice from the tables of a folder; prints the addresses of each launch's call, and what was compiled.

With `late` as the second argument Triton's driver is the one that `tuner` makes active, else it is Triton's own.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stub_driver
import stub_matmul
import torch
from decorated import scale
from triton.runtime import driver

import tuner
from tuner.hardware import device
from tuner.kernels import bmm, gated_linear, matmul, rms_norm, softmax, vector_add

compiles = stub_matmul.activate(late=sys.argv[2] == "late")
device.current = lambda _index=None: device.KNOWN["sm_90"]
tuner.use(sys.argv[1])
log = Path(os.environ["CUDA_STUB_LOG"])
told: list[list[int]] = []
keep: list[Any] = []


def call(op: Callable[..., Any], *tensors: torch.Tensor, **options: Any) -> None:
    """Two calls with the same tensors."""
    for _ in range(2):
        result = op(*tensors, **options)
        given = [*tensors, *(option for option in options.values() if isinstance(option, torch.Tensor)), result]
        launched = log.read_text().count('"launch"') - len(told)
        told.extend([[each.data_ptr() for each in given if each is not None]] * launched)
        keep.append(given)


def brain(rows: int, columns: int) -> torch.Tensor:
    return torch.empty(rows, columns, dtype=torch.bfloat16)


def eight(rows: int, columns: int) -> torch.Tensor:
    return torch.empty(rows, columns, dtype=torch.float8_e4m3fn)


def scaled(x: torch.Tensor, y: torch.Tensor) -> None:
    scale[(8,)](x, y, 1, 1000, 2.5)


def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return rms_norm(x, weight, 1e-6)


def every_op() -> None:
    half = stub_matmul.half
    call(matmul, half(256, 256), half(256, 256))
    call(matmul, half(256, 256), half(256, 512))
    call(matmul, half(64, 1024), half(1024, 64), out=half(64, 64))
    call(matmul, brain(8, 512), brain(256, 512).t(), bias=brain(1, 256)[0], activation="silu")
    call(matmul, brain(8, 2048), brain(512, 2048).t())
    call(matmul, brain(256, 512), brain(512, 512).t())
    call(matmul, brain(264, 512), brain(512, 512).t())
    call(matmul, brain(129, 512), brain(6144, 512).t(), bias=brain(1, 6144)[0])
    call(matmul, brain(384, 512), brain(512, 512).t(), bias=brain(1, 512)[0])
    call(matmul, eight(256, 256), eight(256, 256).t(), scale_a=torch.ones(1), scale_b=torch.ones(1))
    call(matmul, eight(384, 512), eight(512, 512).t(), scale_a=torch.ones(384, 1), scale_b=torch.ones(1, 512))
    call(bmm, half(256, 256).view(4, 64, 256), half(512, 256).view(4, 128, 256).mT)
    call(softmax, half(2, 131_072))
    call(vector_add, half(1, 256)[0], half(1, 256)[0])
    call(normalized, half(256, 1024), half(1, 1024)[0])
    call(gated_linear, brain(8, 512), brain(256, 512), brain(256, 512))
    call(gated_linear, brain(256, 512), brain(256, 512), brain(256, 512))
    call(scaled, torch.empty(2048), torch.empty(2048))


# A thread has no context until something that it calls makes one; this one's first call runs a plan.
worker = threading.Thread(target=every_op)
worker.start()
worker.join()
call(matmul, stub_matmul.half(256, 256), stub_matmul.half(256, 256))
stub_driver.tell(
    calls=told,
    compiled=compiles.compiled,
    from_cache=compiles.from_cache,
    module=type(vars(driver.active).get("utils")).__name__,
)
