"""The crew of a sweep: a worker for each GPU, and the compilers; they start while the caller does something else."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tuner.device import KNOWN, Device, Environment
from tuner.errors import SweepError
from tuner.sweep.clocks import first_arch
from tuner.sweep.compile import CompilePool
from tuner.sweep.lane import Lane


class Crew:
    """Workers and compilers; a context manager that ends them all.

    Attributes:
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
        self._compilers = compilers
        self._stack = contextlib.ExitStack()
        self.lanes = [Lane(gpu) for gpu in gpus]
        for lane in self.lanes:
            self._stack.callback(lane.close)
        self.arch = None if None in gpus else first_arch()
        self.pool: CompilePool | None = None
        self._coming: Future[CompilePool] | None = None
        if compilers and (likely := KNOWN.get(self.arch or "")) is not None:
            # In a thread: it waits until the process that they are forked from has imported torch and Triton.
            thread = ThreadPoolExecutor(1, thread_name_prefix="tuner-crew")
            self._coming = thread.submit(CompilePool, likely)
            self._stack.callback(self._dismiss, self._coming)
            thread.shutdown(wait=False)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
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
        if self._coming is not None and self.arch == device.arch:
            self.pool = self._coming.result()
        elif self._compilers and (pool := _pool_for(device)) is not None:
            self.pool = self._stack.enter_context(pool)
        return device, environment

    @staticmethod
    def _dismiss(coming: Future[CompilePool]) -> None:
        coming.result().__exit__()


def _pool_for(device: Device) -> CompilePool | None:
    return None if device.is_interpreter else CompilePool(device)
