"""A lane: one worker and the problem it is at. Feeds it, takes its replies, buries it and starts another."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from enum import Enum, auto

from tuner.config import Config
from tuner.errors import SweepError
from tuner.records import Outcome, State, Verdict
from tuner.sweep.compile import Compiled, CompilePool
from tuner.sweep.job import Job
from tuner.sweep.messages import (
    FinalsPlayed,
    Idle,
    Measure,
    PlayFinals,
    Ready,
    Refused,
    Reply,
    Result,
    SetProblem,
)
from tuner.sweep.worker import Worker, WorkerDiedError

BATCH = 16
"""Configs replayed in rotation: about 0.15 s of work, so that an interrupt waits no longer."""
_STRIKES = 3
DEATHS_IN_A_ROW = 10
"""Workers dying one after the other, no config measured in between: it is the machine, not the configs."""
_log = logging.getLogger(__name__)


class Phase(Enum):
    """Where a lane's problem is."""

    FREE = auto()
    SETTING_UP = auto()
    SEARCHING = auto()
    FINALS = auto()
    DONE = auto()


class Lane:
    """One GPU (or the interpreter) at work on one problem at a time.

    Attributes:
        pool: where binaries come from, None under the interpreter.
        record: told of each config's outcome, in the order they come.
        phase, job: where it is, and with which problem.
        verdict, failure: how its last problem ended: one of them is None.
    """

    def __init__(self, gpu: int | None) -> None:
        """Start the worker.

        Args:
            gpu: CUDA index, None for the interpreter.
        """
        self.gpu = gpu
        self.worker = Worker(gpu)
        self.pool: CompilePool | None = None
        self.record: Callable[[Job, Config, Outcome], None] = lambda _job, _config, _outcome: None
        self.phase = Phase.FREE
        self.job: Job | None = None
        self.verdict: Verdict | None = None
        self.failure: str | None = None
        self._flying: list[Config] = []
        self.busy = False
        self._alone = False
        self._strikes = 0
        self._deaths = 0

    def assign(self, job: Job) -> None:
        """Take on a problem."""
        self.job, self.verdict, self.failure = job, None, None
        self._alone, self._strikes = self.gpu is None, 0
        self._set_up()

    def release(self) -> Job:
        """Hand back a problem that is done and be free for the next."""
        assert self.job is not None
        job, self.job, self.phase = self.job, None, Phase.FREE
        return job

    def step(self, *, late: bool = False, stopping: bool = False) -> None:
        """Give the worker what there is to do.

        Args:
            late: no new trial; the finals are played over what there is.
            stopping: nothing new at all.
        """
        if self.busy or self.job is None or self.phase not in (Phase.SEARCHING, Phase.FINALS):
            return
        if stopping:
            self.phase = Phase.DONE
            return
        if self.phase is Phase.SEARCHING:
            if late:
                self.job.abandon()
            batch, decided = self.job.take(1 if self._alone else BATCH, self.pool)
            for config, outcome in decided:
                self._finish(config, outcome)
            if batch:
                self._flying = batch
                self._send(Measure(tuple(batch)))
            elif not self.job.searching:
                self.phase = Phase.FINALS
        if self.phase is Phase.FINALS and not self.busy:
            self._enter_finals()

    def receive(self) -> None:
        """Take one reply; call it when the worker's connection is readable."""
        try:
            reply = self.worker.receive()
        except WorkerDiedError as e:
            self._bury(e)
            return
        self._take(reply)

    def check_alive(self) -> None:
        """Bury a worker that is silent for too long."""
        if not self.busy:
            return
        try:
            self.worker.check_alive()
        except WorkerDiedError as e:
            self._bury(e)

    def close(self) -> None:
        """End the worker."""
        self.worker.kill()

    def _take(self, reply: Reply) -> None:
        assert self.job is not None
        if isinstance(reply, Ready):
            self.busy, self.phase = False, Phase.FINALS if not self.job.searching else Phase.SEARCHING
        elif isinstance(reply, Refused):
            self._fail(reply.message)
        elif isinstance(reply, Result):
            if reply.config in self._flying:
                self._flying.remove(reply.config)
                self._finish(reply.config, reply.outcome)
            else:
                self.job.rejected[reply.config.digest] = reply.outcome.message
        elif isinstance(reply, Idle):
            self.busy = False
            if reply.poisoned:
                self._restart()
        elif isinstance(reply, FinalsPlayed):
            self.busy = False
            self.job.rejected |= reply.rejected
            self.verdict = self.job.verdict(reply.times)
            if self.verdict is not None or not self.job.finalists():
                self._end("every finalist failed its check")

    def _enter_finals(self) -> None:
        assert self.job is not None
        finalists = self.job.finalists()
        if not finalists:
            self._end("no config worked")
            return
        self._send(PlayFinals(tuple(finalists), self.job.default, seed=len(self.job.rejected)))

    def _finish(self, config: Config, outcome: Outcome) -> None:
        assert self.job is not None
        if self.pool is not None:
            result = self.pool.result(self.job.key(config))
            if isinstance(result, Compiled):
                outcome = dataclasses.replace(outcome, resources=result.resources)
        self.job.outcomes[config] = outcome
        self.job.measured += 1
        if outcome.state is State.COMPLETE:
            self._deaths = 0
        self.record(self.job, config, outcome)

    def _end(self, failure: str) -> None:
        self.phase = Phase.DONE
        self.failure = None if self.verdict else failure

    def _fail(self, reason: str) -> None:
        self.busy, self.failure, self.phase = False, reason, Phase.DONE

    def _bury(self, death: WorkerDiedError) -> None:
        """Record what the worker died of, hand the rest back, start another."""
        assert self.job is not None
        _log.debug("%s at %s", death, death.config)
        self._deaths += 1
        culprit = death.config
        if culprit is None and self.phase is Phase.SEARCHING and len(self._flying) == 1:
            culprit = self._flying[0]
        if culprit in self._flying and culprit is not None:
            self._flying.remove(culprit)
            self._finish(culprit, Outcome(death.state, str(death)))
        elif culprit is not None:
            self.job.rejected[culprit.digest] = str(death)
        else:
            # Nobody to blame: one config at a time from here on tells, and three times is enough.
            self._alone = True
            self._strikes += 1
        if self._deaths >= DEATHS_IN_A_ROW:
            raise SweepError(f"{self._deaths} workers died in a row: {death}; type `tuner doctor`")
        self._restart()
        if self._strikes >= _STRIKES:
            self._fail(f"the worker died {_STRIKES} times: {death}")

    def _restart(self) -> None:
        assert self.job is not None
        self.worker.kill()
        self.job.put_back(self._flying)
        self._flying = []
        self.worker = Worker(self.gpu)
        self.worker.hello()
        self._set_up()

    def _set_up(self) -> None:
        assert self.job is not None
        self.phase = Phase.SETTING_UP
        self._send(SetProblem(self.job.problem))

    def _send(self, request: SetProblem | Measure | PlayFinals) -> None:
        self.busy = True
        try:
            self.worker.send(request)
        except WorkerDiedError as e:
            self._bury(e)
