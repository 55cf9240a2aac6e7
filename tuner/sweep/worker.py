"""A GPU's worker: the only process that touches the GPU. The parent watches it, and replaces it when it dies."""

from __future__ import annotations

import functools
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tuner.errors import TunerError, in_short
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.sweep import messages
from tuner.sweep.child import Child
from tuner.sweep.device_session import DeviceSession, serve_requests
from tuner.sweep.gpu_gate import GpuGate
from tuner.sweep.process import clear_output

PROBLEM_LIMIT_S = 180.0
"""Time to make inputs and a float64 reference."""
TRIAL_LIMIT_S = 30.0
"""Time between two signs of life while a config runs; see `Worker.send` for the interpreter."""


class Worker(Child):
    """The parent's handle of one worker process."""

    def __init__(self, gpu: int | None, *, opens: bool = True, gate: Path | None = None) -> None:
        """Start the process; see `Child`. The workers of one GPU have one file `gate`; see `tuner.sweep.gpu_gate`."""
        self.gpu, self.gate = gpu, gate
        super().__init__(functools.partial(serve, gate=gate), gpu, heartbeat_limit_s=TRIAL_LIMIT_S, opens=opens)

    def send(self, request: messages.Request, *, slowest_s: float | None = None) -> None:
        """Send a request; replies come through `receive`.

        Under the interpreter the first trial has four times the limit of a GPU. The configs of a problem take about
        equally long there, so a later one may take four times as long as the longest before it.

        Args:
            request: what to do.
            slowest_s: the problem's longest complete trial; 0 where a config hung before any was complete, None where
                nothing is known yet.
        """
        if self.gpu is None:
            self.heartbeat_limit_s = max(TRIAL_LIMIT_S, 4 * (TRIAL_LIMIT_S if slowest_s is None else slowest_s))
        # Before its first heartbeat a worker may make inputs and a reference, unless it is asked to measure.
        self.ask(request, self.heartbeat_limit_s if isinstance(request, messages.Measure) else PROBLEM_LIMIT_S)


def serve(connection: Connection, gpu: int | None, log: str, *, gate: Path | None = None) -> None:
    """Run in the child: answer requests until the pipe closes."""
    shared = None if gate is None else GpuGate(gate, waiting=lambda: connection.send(messages.Waiting()))
    serve_requests(connection, gpu, log, _ProblemHandler, shared)


class _ProblemHandler:
    """The child's side: a device, and the problem that was set."""

    def __init__(self, session: DeviceSession) -> None:
        self._session = session
        self.measurement: Any = None

    def answer(self, request: messages.Request, connection: Connection) -> bool:
        """Carry out one request; return False when the process must end."""
        from tuner.sweep.measure import ContextLostError

        def heartbeat(config: Config | None) -> None:
            clear_output()
            connection.send(messages.Heartbeat(config))

        try:
            match request:
                case messages.SetProblem():
                    with self._session.timer.gate.shared():
                        reply = self._set_problem(request)
                        if isinstance(reply, messages.Refused):
                            self._clear()  # what it had made by then
                        self._session.timer.synchronize()
                    connection.send(reply)
                case messages.ClearProblem():
                    with self._session.timer.gate.shared():
                        self._clear()
                    connection.send(messages.ProblemCleared())
                case messages.Measure():
                    for config, outcome in self.measurement.search(request.configs, heartbeat, drop=request.drop):
                        connection.send(messages.Result(config, outcome))
                    connection.send(messages.Idle())
                case messages.PlayFinals():
                    connection.send(self._play(request, heartbeat))
                case messages.CompareRows():
                    connection.send(self._compare(request))
        except ContextLostError as e:
            connection.send(messages.Result(e.config, e.outcome))
            connection.send(messages.Idle(context_lost=True))
            return False
        return True

    def _clear(self) -> None:
        import torch

        self.measurement = None
        torch.cuda.empty_cache()

    def _set_problem(self, request: messages.SetProblem) -> messages.Reply:
        import torch

        from tuner.sweep.measure import Measurement

        session = self._session
        self._clear()
        spec = registry.serving(request.problem, session.device)[0]
        try:
            self.measurement = Measurement(spec, request.problem, session.timer, session.monitor, session.torch_device)
        except (torch.cuda.OutOfMemoryError, MemoryError) as e:
            return messages.too_large(e)
        except TunerError as e:
            session.timer.synchronize()  # raises where the context is lost, which ends this process
            return messages.Refused(str(e))
        return messages.Ready(torch.cuda.memory_reserved())

    def _compare(self, request: messages.CompareRows) -> messages.Reply:
        from tuner.sweep import bits

        session, problem = self._session, request.problem
        self.measurement = None
        try:
            spec = registry.serving(problem, session.device)[0]
            changed = bits.changed_rows(spec, problem, request.configs, session.timer, session.torch_device)
        except Exception as e:  # noqa: BLE001  the boundary of a child process: a launch may raise anything
            session.timer.synchronize()  # raises where the context is lost, which ends this process
            return messages.Refused(in_short(e))
        return messages.RowsCompared(changed)

    def _play(self, request: messages.PlayFinals, heartbeat: Callable[[Config | None], None]) -> messages.Reply:
        import torch

        try:
            times, rejected = self.measurement.finals(
                request.finalists, seed=request.seed, rounds=request.rounds, heartbeat=heartbeat
            )
            return messages.FinalsPlayed(times, rejected)
        except (torch.cuda.OutOfMemoryError, MemoryError) as e:
            return messages.too_large(e)
