"""The crew of a sweep: a worker for each GPU, and the compilers; they start while the caller does something else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.errors import SweepError
from tuner.hardware.device import KNOWN, Device, Environment
from tuner.sweep.clocks import first_arch
from tuner.sweep.worker import Worker

if TYPE_CHECKING:
    from tuner.sweep.compile_pool import CompilePool
    from tuner.sweep.supervisor import Lane


class Crew:
    """Workers and compilers; a context manager that ends them all.

    Attributes:
        begun: when the processes were started, by `time.monotonic`.
        lanes: one a GPU.
        arch: of the machine's first GPU, None where nobody knows before a worker says so.
        pool: the compilers, None under the interpreter; final once the crew has met.
    """

    def __init__(self, gpus: Sequence[int | None], *, compilers: bool = True) -> None:
        """Start the processes.

        Args:
            gpus: CUDA indices, or [None] for the interpreter.
            compilers: whether anything will be compiled.
        """
        self.begun = time.monotonic()
        self._compilers = compilers
        self._stack = contextlib.ExitStack()
        self.lanes = _manned([Worker(gpu) for gpu in gpus])
        for lane in self.lanes:
            self._stack.callback(lane.close)
        self.arch = None if None in gpus else first_arch()
        self.pool: CompilePool | None = None
        if compilers and (likely := KNOWN.get(self.arch or "")) is not None:
            self.pool = self._hired(likely)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self.lanes:
            lane.worker.end()  # all die together: to give a GPU back takes a process a tenth of a second
        self._stack.close()

    def meet(self) -> tuple[Device, Environment]:
        """Wait for the workers; the device and the versions they work with.

        Raises:
            DeviceError: a GPU is not there.
            SweepError: a worker could not be started, or the GPUs are of several models.
        """
        hellos = [lane.worker.hello() for lane in self.lanes]
        models = sorted({hello.device.slug for hello in hellos})
        if len(models) > 1:
            raise SweepError(
                f"these GPUs are of several models ({', '.join(models)}): name some of one, --device cuda:0"
            )
        device, environment = hellos[0].device, hellos[0].environment
        if self._compilers and (self.pool is None or self.pool.arch != device.arch):
            self.pool = self._hired(device)
        return device, environment

    def _hired(self, device: Device) -> CompilePool | None:
        pool = _pool_for(device)
        return None if pool is None else self._stack.enter_context(pool)


def _manned(workers: Sequence[Worker]) -> list[Lane]:
    # Imported while the workers start: numpy and all that a search is made of.
    from tuner.sweep.supervisor import Lane

    return [Lane(worker) for worker in workers]


def _pool_for(device: Device) -> CompilePool | None:
    from tuner.sweep.compile_pool import CompilePool

    return None if device.is_interpreter else CompilePool(device)
