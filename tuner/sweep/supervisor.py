"""A lane: one worker and the problem it is at. Feeds it, takes its replies, buries it and starts another."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from enum import Enum, auto

from tuner.errors import SweepError
from tuner.kernel.config import Config
from tuner.store.records import Outcome, Verdict
from tuner.sweep.child import WorkerDiedError
from tuner.sweep.compile_pool import Compiled, CompilePool
from tuner.sweep.job import SPENT, Job
from tuner.sweep.messages import (
    Beat,
    FinalsPlayed,
    Hello,
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
from tuner.sweep.worker import Worker

BATCH = 16
"""Configs replayed in rotation: about 0.1 s of work, so that an interrupt waits no longer."""
STRIKES = 3
"""Deaths nobody is to blame for, of one problem: then it is given up."""
DEATHS_IN_A_ROW = 10
"""Deaths with no answer about any config in between: then the problem is given up, at the second one the sweep."""
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
        busy: whether the worker owes a reply.
        verdict, failure: how its last problem ended: one of them is None.
    """

    def __init__(self, worker: Worker) -> None:
        """Begin without a problem.

        Args:
            worker: started; not met yet perhaps.
        """
        self.gpu = worker.gpu
        self.worker = worker
        self.pool: CompilePool | None = None
        self.record: Callable[[Job, Config, Outcome], None] = lambda _job, _config, _outcome: None
        self.phase = Phase.FREE
        self.job: Job | None = None
        self.busy = False
        self.verdict: Verdict | None = None
        self.failure: str | None = None
        self._greeted = True
        self._ready = False
        self._begun = False
        self._flying: list[Config] = []
        self._alone = False
        self._strikes = 0
        self._deaths = 0
        self._given_up = 0

    def assign(self, job: Job) -> None:
        """Take on a problem."""
        job.watch.enter("set up")
        self.job, self.verdict, self.failure = job, None, None
        self._alone, self._strikes = self.gpu is None, 0
        self._ready = False
        self.phase = Phase.SETTING_UP

    def release(self) -> Job:
        """Hand back a problem that is done and be free for the next."""
        assert self.job is not None
        job, self.job, self.phase = self.job, None, Phase.FREE
        job.watch.enter("")
        return job

    def step(self, *, late: bool = False, stopping: bool = False) -> None:
        """Give the worker what there is to do.

        Args:
            late: no new trial but the default's; the finals are played over what there is. A problem of which there is
                nothing yet is given up.
            stopping: nothing new at all.
        """
        if self.busy or self.job is None or self.phase is Phase.DONE:
            return
        if stopping:
            self.phase = Phase.DONE
        elif late and not self.job.outcomes:
            self._end(SPENT)
        elif not self._ready:
            self._ask(SetProblem(self.job.problem))
        elif self.phase is Phase.SEARCHING:
            self._search(self.job, late=late)
        elif finalists := self.job.finalists():
            self._ask(PlayFinals(tuple(finalists), seed=len(self.job.rejected)))
        else:
            self._end(SPENT if late else f"no config worked{self.job.trouble}")

    def receive(self, *, stopping: bool = False) -> None:
        """Take one reply; call it when the worker's connection is readable."""
        try:
            reply = self.worker.receive()
        except WorkerDiedError as e:
            self._bury(e, stopping=stopping)
        else:
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

    def _search(self, job: Job, *, late: bool) -> None:
        if late:
            job.abandon()
        batch, decided = job.take(1 if self._alone else BATCH, self.pool)
        for config, outcome in decided:
            self._finish(config, outcome)
        if batch:
            job.watch.enter("search")
            self._flying = batch
            self._ask(Measure(tuple(batch), job.strategy.drop))
        elif job.searching:
            job.watch.enter("compile")
        elif not decided:
            # Else the search is told first, and may want more.
            job.watch.enter("finals")
            self.phase = Phase.FINALS

    def _ask(self, request: Request) -> None:
        self.busy, self._begun = True, False
        try:
            self.worker.send(request)
        except WorkerDiedError as e:
            self._bury(e)

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Beat):
            self._begun = True
            return
        if isinstance(reply, Result):
            self._deaths = 0
            if reply.config in self._flying:
                self._flying.remove(reply.config)
                self._finish(reply.config, reply.outcome)
            else:
                self._reject(reply.config, reply.outcome.message)
            return
        self.busy = False
        if isinstance(reply, Hello):
            self._greeted = True
        elif isinstance(reply, Ready):
            self._ready = True
            self.phase = Phase.SEARCHING
        elif isinstance(reply, Refused):
            if not self._greeted:
                raise SweepError(f"a new worker found its device gone: {reply.message}")
            self._end(reply.message)
        elif isinstance(reply, Idle) and reply.poisoned:
            self._replace_worker()
        elif isinstance(reply, FinalsPlayed):
            self._judge(reply)

    def _judge(self, played: FinalsPlayed) -> None:
        assert self.job is not None
        self._deaths = self._given_up = 0
        self.job.rejected |= played.rejected
        self.verdict = self.job.verdict(played.times)
        if self.verdict is not None or not self.job.finalists():
            self._end("every finalist failed its check")

    def _finish(self, config: Config, outcome: Outcome) -> None:
        assert self.job is not None
        if self.pool is not None:
            result = self.pool.result(self.job.key(config))
            if isinstance(result, Compiled):
                outcome = dataclasses.replace(outcome, resources=result.resources)
        self.job.finish(config, outcome)
        self.record(self.job, config, outcome)

    def _reject(self, config: Config, reason: str) -> None:
        assert self.job is not None
        self.job.rejected[config.digest] = reason

    def _end(self, failure: str) -> None:
        self.phase = Phase.DONE
        self.failure = None if self.verdict else failure

    def _bury(self, death: WorkerDiedError, *, stopping: bool = False) -> None:
        """Record what the worker died of, hand the rest back, start another."""
        _log.debug("%s at %s", death, death.config)
        if stopping:
            self.busy, self.phase = False, Phase.DONE if self.job else Phase.FREE
            return
        if self.job is not None:
            self._blame(death)
        self._replace_worker()

    def _blame(self, death: WorkerDiedError) -> None:
        self._deaths += 1
        culprit = death.config
        if culprit is None and self._begun and len(self._flying) == 1:
            culprit = self._flying[0]
        if culprit is None:
            # Nobody to blame: one config at a time from here on tells, and three times is enough.
            self._alone = True
            self._strikes += 1
        elif culprit in self._flying:
            self._flying.remove(culprit)
            self._finish(culprit, Outcome(death.state, str(death)))
        else:
            self._reject(culprit, str(death))
        if self._deaths >= DEATHS_IN_A_ROW:
            self._give_up(death)
        elif self._strikes >= STRIKES:
            self._end(f"the worker died {STRIKES} times: {death}")

    def _give_up(self, death: WorkerDiedError) -> None:
        reason = f"{self._deaths} workers died in a row: {death}"
        self._deaths = 0
        self._given_up += 1
        if self._given_up > 1:
            raise SweepError(f"{reason}; type `tuner doctor`")
        self._end(reason)

    def _replace_worker(self) -> None:
        """Start another worker; its `Hello` is what is waited for next, then the problem is set up anew."""
        self.worker.kill()
        if self.job is not None:
            self.job.put_back(self._flying)
        self._flying = []
        self._ready = self._greeted = False
        self.worker = Worker(self.gpu)
        self.busy = True
