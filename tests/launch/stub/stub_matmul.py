"""The ops of `tuner.kernels` over the stub: tensors on the host pass for an H200's, streams and device are told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import stub_driver
import torch
from triton.runtime import driver

from tuner.hardware.device import KNOWN
from tuner.kernels.ops import (
    arguments,
    bmm,
    dispatch,
    elementwise_arguments,
    gated_linear,
    grouped_mm,
    rms_norm,
    vector_add,
)

_stream = threading.local()


def activate(*, late: bool = False) -> stub_driver.Compiles:
    """Make the ops take tensors on the host, and launch through the stub's driver."""
    compiles = stub_driver.activate(late=late)
    driver.active.get_current_stream = lambda _device=None: getattr(_stream, "handle", stub_driver.STREAM)
    dispatch.device_of = lambda _index: KNOWN["sm_90"]
    arguments.has_kernels = lambda _device: True
    for module in (arguments, bmm, grouped_mm):
        module.check_kinds = lambda _a, _b: None
    for module in (elementwise_arguments, gated_linear, rms_norm, vector_add):
        module.check_input = lambda _name, tensor: tensor.resolve_neg()
    return compiles


@contextlib.contextmanager
def on_stream(handle: int) -> Iterator[None]:
    """Launch on a stream of this thread's own."""
    _stream.handle = handle
    try:
        yield
    finally:
        del _stream.handle


def pointers(*tensors: Any) -> list[int]:
    """Addresses, as a launch is to have them."""
    return [tensor.data_ptr() for tensor in tensors]


def half(rows: int, columns: int, shift: int = 0) -> torch.Tensor:
    """A float16 matrix, `shift` elements into its memory."""
    return torch.empty(rows * columns + shift, dtype=torch.float16)[shift:].view(rows, columns)
