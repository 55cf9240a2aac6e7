"""Plays configs of a problem against each other, as a run's finals do, without searching or storing anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

from tuner.hardware.device import INTERPRETER, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.sweep import gpu_lock
from tuner.sweep.child import WorkerDiedError
from tuner.sweep.compile_pool import CompilePool
from tuner.sweep.messages import (
    CompareRows,
    FinalsPlayed,
    Hello,
    PlayFinals,
    Ready,
    Refused,
    Result,
    RowsCompared,
    SetProblem,
)
from tuner.sweep.worker import Worker

_SEED = 1


class PairedRunner(contextlib.AbstractContextManager["PairedRunner"]):
    """Measures with a worker that is replaced when it dies; a context manager.

    Attributes:
        device: the device's model.
        environment: the versions in use; None for the interpreter until something is measured.
    """

    def __init__(self, gpu: int | None) -> None:
        """Open a CUDA device by its index; the interpreter needs no worker until something is measured."""
        self._gpu = gpu
        self._worker: Worker | None = None
        self._lock = contextlib.ExitStack()
        self.environment: Environment | None = None
        self.device = INTERPRETER
        if gpu is not None:
            hello = self._open()
            self.device = hello.device
            try:
                self._lock = gpu_lock.hold([hello.gpu_uuid])
            except BaseException:
                self._end()
                raise

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._end()

    def compile(self, todo: Iterable[tuple[Problem, Config]]) -> dict[tuple[Problem, Config], str]:
        """Compile configs on all cores, so that the worker finds them in Triton's cache; returns why some do not."""
        asked = list(dict.fromkeys(todo))
        if not asked or self._gpu is None:
            return {}
        with CompilePool(self.device) as pool:
            return pool.compile_all(asked)

    def play(self, problem: Problem, configs: Sequence[Config]) -> FinalsPlayed | str:
        """Play configs of a problem in paired rounds, torch's library beside them; or say why that was not possible."""
        reply = self._answer(SetProblem(problem), PlayFinals(tuple(configs), _SEED))
        assert isinstance(reply, (FinalsPlayed, str))
        return reply

    def restart(self) -> None:
        """Have what comes next measured by another process: some configs are a little faster in one than in another."""
        self._end()

    def compare(self, problem: Problem, configs: tuple[tuple[int, Config], ...]) -> Mapping[int, int] | str:
        """Compare the rows of an invariant problem with those of smaller Ms (`CompareRows`); or say why not."""
        reply = self._answer(CompareRows(problem, configs))
        assert isinstance(reply, (RowsCompared, str))
        return reply if isinstance(reply, str) else reply.changed

    def _open(self) -> Hello:
        self._worker = Worker(self._gpu)
        hello = self._worker.hello()
        self.environment = hello.environment
        return hello

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _answer(self, *requests: SetProblem | PlayFinals | CompareRows) -> object:
        """Send requests one after the other; return the reply to the last, or why there is none, in words."""
        if self._worker is None:
            self._open()
        try:
            for request in requests:
                reply = self._ask(request)
                if isinstance(reply, Refused):
                    return reply.message
        except WorkerDiedError as e:
            self._end()
            return str(e)
        return reply

    def _ask(self, request: SetProblem | PlayFinals | CompareRows) -> Ready | Refused | FinalsPlayed | RowsCompared:
        """Send a request and return its last reply; a worker that lost its context ends, which raises."""
        worker = self._worker
        assert worker is not None
        worker.send(request)
        while True:
            reply = worker.wait()
            if isinstance(reply, Result):  # of the config that lost the context
                reason = f"{reply.config}: {reply.outcome.message}"
                raise WorkerDiedError(reply.outcome.state, reason, reply.config)
            if isinstance(reply, (Ready, Refused, FinalsPlayed, RowsCompared)):
                return reply
