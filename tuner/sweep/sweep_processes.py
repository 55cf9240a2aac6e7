"""The processes of a sweep: workers for each GPU, and the compilers. They start while the caller does other work."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import SweepError
from tuner.hardware.device import KNOWN, Device, Environment
from tuner.sweep import gpu_lock
from tuner.sweep.nvml import first_arch
from tuner.sweep.process import scratch_folder
from tuner.sweep.worker import Worker

if TYPE_CHECKING:
    from tuner.sweep.compile_pool import CompilePool


WORKERS_OF_A_GPU = 3
"""How many problems a GPU has at once, if anything is compiled: while one is timed, others are prepared or wait for
binaries."""


class SweepProcesses(contextlib.AbstractContextManager["SweepProcesses"]):
    """Workers and compilers; a context manager that ends them all.

    Attributes:
        begun: the `time.monotonic` at which the processes were started, plus the time spent waiting for GPUs.
        supervisors: one for each GPU, and behind them those of its other workers; see `wait_until_ready`.
        arch: the architecture of the machine's first GPU; None where only a worker can tell.
        pool: the compilers, None under the interpreter. It may change until `wait_until_ready` returns.
    """

    def __init__(self, gpus: Sequence[int | None], *, compilers: bool = True) -> None:
        """Start the processes.

        Args:
            gpus: CUDA indices, or [None] for the interpreter.
            compilers: whether anything will be compiled.
        """
        self.begun = time.monotonic()
        self._compilers = compilers
        self._locks = contextlib.ExitStack()
        with contextlib.ExitStack() as starting:
            workers = []
            gates = Path(starting.enter_context(scratch_folder()))
            for number, gpu in enumerate(gpus):
                workers.append(Worker(gpu, gate=gates / str(number) if compilers else None))
                starting.callback(workers[-1].kill)
            # This imports numpy and the search, which takes a while: by now the workers are starting.
            from tuner.sweep.supervisor import WorkerSupervisor

            self.supervisors = [WorkerSupervisor(worker) for worker in workers]
            self._stack = starting.pop_all()
        for supervisor in self.supervisors:
            self._stack.callback(supervisor.close)
        self.arch = None if None in gpus else first_arch()
        self.pool: CompilePool | None = None
        if compilers and (likely := KNOWN.get(self.arch or "")) is not None:
            self.pool = self._start_pool(likely)

    def __exit__(self, *_: object) -> None:
        for supervisor in self.supervisors:
            # All are killed before any is waited for, since a process needs a tenth of a second to free its GPU.
            supervisor.worker.send_kill()
        with self._locks:  # a GPU is free for others once its worker is gone
            self._stack.close()

    def wait_until_ready(self, stop: threading.Event | None = None) -> tuple[Device, Environment]:
        """Wait until every worker has opened its GPU; return the device and the versions they work with.

        Where anything is compiled, each GPU then gets more workers, which nothing waits for.

        Raises:
            KeyboardInterrupt: `stop` was set meanwhile.
            DeviceError: a GPU is not there.
            SweepError: a worker could not be started, or the GPUs are of several models.
        """
        hellos = [supervisor.worker.hello(stop) for supervisor in self.supervisors]
        models = sorted({hello.device.slug for hello in hellos})
        if len(models) > 1:
            raise SweepError(
                f"these GPUs are of several models ({', '.join(models)}): name some of one, --device cuda:0"
            )
        device, environment = hellos[0].device, hellos[0].environment
        if self._compilers and (self.pool is None or self.pool.arch != device.arch):
            self.pool = self._start_pool(device)
        for supervisor, hello in zip(self.supervisors, hellos, strict=True):
            supervisor.pool, supervisor.gpu_uuid = self.pool, hello.gpu_uuid
        if self.pool is not None:
            self._share_gpus()
        return device, environment

    def _share_gpus(self) -> None:
        for first in tuple(self.supervisors):
            for _ in range(WORKERS_OF_A_GPU - 1):
                another = first.share()
                self.supervisors.append(another)
                self._stack.callback(another.close)

    def hold_gpus(self, stop: threading.Event | None = None) -> None:
        """Keep others from measuring on the GPUs until these end; see `tuner.sweep.gpu_lock.hold`.

        The workers must be ready. The time that this waits is not counted since `begun`.
        """
        asked = time.monotonic()
        self._locks = gpu_lock.hold((supervisor.gpu_uuid for supervisor in self.supervisors), stop=stop)
        self.begun += time.monotonic() - asked

    def _start_pool(self, device: Device) -> CompilePool | None:
        from tuner.sweep.compile_pool import CompilePool

        return None if device.is_interpreter else self._stack.enter_context(CompilePool(device))
