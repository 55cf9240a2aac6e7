"""The child's side of a device: opening it, its timer and clocks, and answering the parent until the pipe closes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from tuner.errors import TunerError
from tuner.hardware.device import INTERPRETER, Device, Environment
from tuner.kernel import registry
from tuner.launch import compat
from tuner.sweep.clocks import Clocks, driver_version, watch
from tuner.sweep.messages import Hello, Refused
from tuner.sweep.process import die_with_parent, redirect_output
from tuner.sweep.timer import GraphTimer, HostTimer, Timer


@dataclass(frozen=True, slots=True)
class Station:
    """A device that this process has opened and works on.

    Attributes:
        device, environment: what it is, and under which versions.
        torch_device: "cuda" or "cpu".
        timer, clocks: of the device.
    """

    device: Device
    environment: Environment
    torch_device: str
    timer: Timer
    clocks: Clocks


class Clerk(Protocol):
    """Carries out what the parent asks for."""

    def answer(self, request: Any, connection: Connection) -> bool:
        """Carry out one request and reply; False when the process must end."""
        ...


def attend(connection: Connection, gpu: int | None, log: str, clerk: Callable[[Station], Clerk]) -> None:
    """Run in the child: answer requests until the pipe closes; what anything prints goes into the log."""
    die_with_parent()
    redirect_output(Path(log))
    # Ctrl-C and a batch system's SIGTERM go to the whole group: the parent handles them, and ends the child when it is
    # ready.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if gpu is None:
        # Read when Triton is imported and when a kernel is decorated: neither has happened in this fresh process.
        os.environ["TRITON_INTERPRET"] = "1"
    with contextlib.suppress(EOFError, BrokenPipeError), contextlib.ExitStack() as stack:
        try:
            kernels = connection.recv()
            station = open_station(gpu, stack)
            registry.load(kernels)  # on its own GPU: a user's module may look at the current one
        except TunerError as e:
            connection.send(Refused(str(e)))
            return
        working = clerk(station)
        connection.send(Hello(station.device, station.environment))
        registry.specs()  # the kernels are imported while the parent prepares what it will ask
        while working.answer(connection.recv(), connection):
            pass


def open_station(gpu: int | None, stack: contextlib.ExitStack) -> Station:
    """Open a GPU by its CUDA index, or the interpreter, while the stack holds; its stream is the current one."""
    if gpu is None:
        return Station(INTERPRETER, _environment("interpreter"), "cpu", HostTimer(), Clocks())
    Thread(target=_open_context, args=(gpu,), daemon=True).start()
    # Before torch, whose import takes ten times as long: what Triton's first launch asks for is ready by then.
    Thread(target=compat.triton_key, daemon=True).start()
    import torch

    from tuner.hardware import device as devices

    device = devices.current(gpu)
    torch.cuda.set_device(gpu)
    stack.enter_context(torch.cuda.stream(torch.cuda.Stream()))
    backend = f"hip {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}"
    uuid = getattr(torch.cuda.get_device_properties(gpu), "uuid", None)
    clocks = stack.enter_context(watch(f"GPU-{uuid}" if uuid and not torch.version.hip else None))
    timer = GraphTimer(device.l2_bytes)
    return Station(device, _environment(backend, driver_version()), "cuda", timer, clocks)


def _open_context(gpu: int) -> None:
    """Have CUDA's driver open the GPU's primary context, which torch will use, while torch is imported."""
    with contextlib.suppress(OSError, AttributeError):  # no such driver: torch opens what there is
        cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), gpu) == 0:
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _environment(backend: str, driver: str = "") -> Environment:
    import torch
    import triton

    return Environment(triton.__version__, torch.__version__, backend, driver, platform.python_version())
