"""A GPU's worker: the one process that touches it. The parent never does; it watches a clock, kills, starts another."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tuner.errors import TunerError
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.sweep.child import Child
from tuner.sweep.device_session import Station, attend
from tuner.sweep.messages import (
    Beat,
    FinalsPlayed,
    Idle,
    Measure,
    PlayFinals,
    Ready,
    Refused,
    Reply,
    Request,
    Result,
    SetProblem,
)
from tuner.sweep.process import forget_output

PROBLEM_LIMIT_S = 180.0
"""Making inputs and a float64 reference."""
TRIAL_LIMIT_S = 30.0
"""Between two signs of life while a config runs; the interpreter's children get four times as much."""


class Worker(Child):
    """The parent's handle of one worker process.

    Attributes:
        gpu: CUDA index, None for the interpreter.
    """

    def __init__(self, gpu: int | None) -> None:
        """Start the process; its first reply is `Hello`, or `Refused`.

        Args:
            gpu: CUDA index, None for the interpreter.
        """
        self.gpu = gpu
        super().__init__(serve, gpu, beat_limit_s=TRIAL_LIMIT_S if gpu is not None else 4 * TRIAL_LIMIT_S)

    def send(self, request: Request) -> None:
        """Ask for something; replies come through `receive`.

        Raises:
            WorkerDiedError: the worker is gone; no config of the request is to blame.
        """
        # Until the first Beat it makes inputs and a reference, if it is not ready to touch the device for a config.
        self.ask(request, self.beat_limit_s if isinstance(request, Measure) else PROBLEM_LIMIT_S)

    def receive(self) -> Reply:
        """The next reply; call it when `connection` is readable.

        Raises:
            WorkerDiedError: the worker ended.
        """
        reply: Reply = super().receive()
        return reply


def serve(connection: Connection, gpu: int | None, log: str) -> None:
    """Run in the child: answer requests until the pipe closes."""
    attend(connection, gpu, log, _Bench)


class _Bench:
    """The child's side: a device, and the problem at hand."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self.measurement: Any = None

    def answer(self, request: Request, connection: Connection) -> bool:
        """Carry out one request; False when the process must end."""
        from tuner.sweep.measure import PoisonedError

        def beat(config: Config | None) -> None:
            forget_output()
            connection.send(Beat(config))

        try:
            if isinstance(request, SetProblem):
                connection.send(self._set_problem(request))
            elif isinstance(request, Measure):
                for config, outcome in self.measurement.search(request.configs, beat, drop=request.drop):
                    connection.send(Result(config, outcome))
                connection.send(Idle())
            elif isinstance(request, PlayFinals):
                connection.send(self._play(request, beat))
        except PoisonedError as e:
            connection.send(Result(e.config, e.outcome))
            connection.send(Idle(poisoned=True))
            return False
        return True

    def _set_problem(self, request: SetProblem) -> Reply:
        import torch

        from tuner.sweep.measure import Measurement

        at = self._station
        self.measurement = None
        torch.cuda.empty_cache()
        spec = registry.serving(request.problem, at.device)[0]
        try:
            self.measurement = Measurement(spec, request.problem, at.timer, at.clocks, at.torch_device)
        except (torch.cuda.OutOfMemoryError, MemoryError) as e:
            return _too_large(e)
        except TunerError as e:
            at.timer.synchronize()  # raises where the context is lost: then this process is of no use any more
            return Refused(str(e))
        return Ready()

    def _play(self, request: PlayFinals, beat: Callable[[Config | None], None]) -> Reply:
        import torch

        try:
            return FinalsPlayed(*self.measurement.finals(request.finalists, seed=request.seed, beat=beat))
        except (torch.cuda.OutOfMemoryError, MemoryError) as e:
            return _too_large(e)


def _too_large(error: BaseException) -> Refused:
    first_line = (str(error).splitlines() or [type(error).__name__])[0]
    return Refused(f"operands and reference do not fit into memory: {first_line}")
