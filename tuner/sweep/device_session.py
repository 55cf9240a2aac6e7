"""The child's side of a device: opens it with its timer and monitor, and answers the parent until the pipe closes."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import platform
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from tuner.errors import DeviceError, TunerError
from tuner.hardware.device import INTERPRETER, Device, Environment
from tuner.kernel import registry
from tuner.launch import compat
from tuner.sweep.gpu_gate import Gate, OpenGate
from tuner.sweep.messages import Hello, Imported, Importing, Refused
from tuner.sweep.nvml import GpuMonitor, driver_version, open_monitor
from tuner.sweep.process import die_with_parent, redirect_output
from tuner.sweep.timer import GraphTimer, HostTimer, Timer


@dataclass(frozen=True, slots=True)
class DeviceSession:
    """A device that this process has opened."""

    device: Device
    environment: Environment
    torch_device: str
    timer: Timer
    monitor: GpuMonitor
    gpu_uuid: str | None = None


class RequestHandler(Protocol):
    """Carries out the parent's requests."""

    def answer(self, request: Any, connection: Connection) -> bool:
        """Carry out one request and reply; return False when the process must end."""
        ...


def serve_requests(
    connection: Connection,
    gpu: int | None,
    log: str,
    make_handler: Callable[[DeviceSession], RequestHandler],
    gate: Gate | None = None,
) -> None:
    """Run in the child: answer requests until the pipe closes. Everything printed meanwhile goes into the log.

    Where other workers use the GPU too, `gate` is what this one passes before.
    """
    die_with_parent()
    redirect_output(Path(log))
    # Ctrl-C and a batch system's SIGTERM reach the whole process group. The parent handles them and ends the child.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})  # the timer asks for it, and threads inherit this
    if gpu is None:
        # Triton reads this when it is imported and when a kernel is decorated, neither of which has happened yet.
        os.environ["TRITON_INTERPRET"] = "1"
    with contextlib.suppress(EOFError, BrokenPipeError), contextlib.ExitStack() as stack:
        try:
            if not connection.poll():
                # Another process is at work on the device, which this one may open later: see `Child.open`.
                importlib.import_module("torch")
                connection.send(Imported())
            kernels = connection.recv()
            with (gate or OpenGate()).shared():
                session = open_session(gpu, stack, gate)
                session.timer.synchronize()
                connection.send(Importing(kernels))
                registry.load(kernels)  # after the GPU was opened: a user's module may ask for the current one
        except TunerError as e:
            connection.send(Refused(str(e)))
            return
        handler = make_handler(session)
        connection.send(Hello(session.device, session.environment, session.gpu_uuid))
        registry.specs()  # imports the kernels while the parent prepares its first request
        if session.environment.backend.startswith("cuda"):
            Thread(target=_build_module, daemon=True).start()
        while handler.answer(connection.recv(), connection):
            pass


def open_session(gpu: int | None, stack: contextlib.ExitStack, gate: Gate | None = None) -> DeviceSession:
    """Open a GPU by its CUDA index, or the interpreter, until the stack closes; its stream becomes the current one."""
    if gpu is None:
        return DeviceSession(INTERPRETER, _environment("interpreter"), "cpu", HostTimer(gate), GpuMonitor())
    Thread(target=_open_context, args=(gpu,), daemon=True).start()
    # Started before torch, whose import takes ten times as long, so that Triton's first launch need not wait for it.
    Thread(target=compat.triton_key, daemon=True).start()
    import torch

    from tuner.hardware import device as devices

    device = devices.current(gpu)
    if device.is_interpreter:
        raise DeviceError(
            f"GPU {gpu} was asked for, but TRITON_INTERPRET is set: to tune on it unset it, or give [None]"
        )
    torch.cuda.set_device(gpu)
    stack.enter_context(torch.cuda.stream(torch.cuda.Stream()))
    backend = f"hip {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}"
    uuid = getattr(torch.cuda.get_device_properties(gpu), "uuid", None)
    gpu_uuid = f"GPU-{uuid}" if uuid else None
    monitor = stack.enter_context(open_monitor(None if torch.version.hip else gpu_uuid))
    timer = GraphTimer(device.l2_bytes, gate)
    return DeviceSession(device, _environment(backend, driver_version()), "cuda", timer, monitor, gpu_uuid)


def _open_context(gpu: int) -> None:
    """Open the GPU's primary context, which torch will use, while torch is still being imported."""
    with contextlib.suppress(OSError, AttributeError):  # without such a driver, torch opens what there is
        cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), gpu) == 0:
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _build_module() -> None:
    """Have a C compiler build Triton's module, for which the first launch would wait where no cache has it.

    All that it imports has to be there: of two threads that import Triton one finds it half imported.
    """
    with contextlib.suppress(Exception):  # the first launch tells why, or does without
        compat.CudaUtils()


def _environment(backend: str, driver: str = "") -> Environment:
    import torch
    import triton

    return Environment(triton.__version__, torch.__version__, backend, driver, platform.python_version())
