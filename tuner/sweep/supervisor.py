"""Supervises one worker: gives it a job's requests, takes its replies, and replaces it when it dies."""

from __future__ import annotations

import dataclasses
import logging
import time
from enum import Enum, auto

from tuner.errors import KernelError, SweepError
from tuner.kernel.config import Config
from tuner.store.records import Outcome, State, Verdict, ran_out_of_memory
from tuner.sweep import messages
from tuner.sweep.child import WorkerDiedError
from tuner.sweep.compile_child import Compiled
from tuner.sweep.compile_pool import CompilePool, Urgency
from tuner.sweep.gpu_slot import GpuSlot
from tuner.sweep.job import SPENT, Job
from tuner.sweep.worker import Worker

BATCH = 16
"""Configs replayed in rotation: about 0.1 s of work, so that an interrupt waits no longer."""
MAX_UNEXPLAINED_DEATHS = 3
"""After this many deaths on one problem for which no config is to blame, the problem is given up."""
DEATHS_IN_A_ROW = 10
"""After this many deaths without any result in between, the problem is given up; the second time, the sweep."""
_log = logging.getLogger(__name__)


class Phase(Enum):
    """Where a supervisor's problem is; a further worker is STARTING until it opened the GPU, ABSENT if it cannot."""

    STARTING = auto()
    ABSENT = auto()
    FREE = auto()
    SETTING_UP = auto()
    SEARCHING = auto()
    FINALS = auto()
    DONE = auto()


class WorkerSupervisor:
    """One worker of a GPU (or the interpreter), at work on one problem at a time; several may share a GPU (`share`).

    Attributes:
        gpu: CUDA index, None for the interpreter.
        gpu_uuid: the GPU's UUID, which every outcome gets; set once the worker is ready, None for the interpreter.
        worker: the process at work now.
        pool: where binaries come from, None under the interpreter.
        phase, job: the job at hand, and how far it has come.
        busy: whether the worker owes a reply.
        slot: the worker's slot on the GPU.
        verdict, failure: how the last problem ended; one of them is None.
    """

    def __init__(self, worker: Worker) -> None:
        """Begin without a problem, with a worker that need not be ready."""
        self.gpu = worker.gpu
        self.gpu_uuid: str | None = None
        self.worker = worker
        self.pool: CompilePool | None = None
        self.phase = Phase.FREE
        self.job: Job | None = None
        self.busy = False
        self.slot = GpuSlot()
        self.verdict: Verdict | None = None
        self.failure: str | None = None
        self._finished: list[tuple[Config, Outcome]] = []
        self._hello_received = True
        self._request_begun = False
        self._in_flight: list[Config] = []
        self._one_at_a_time = False
        self._unexplained_deaths = 0
        self._deaths = 0
        self._given_up = 0
        self._asked = 0.0
        self._slowest_s: float | None = None

    def share(self) -> WorkerSupervisor:
        """Start another worker for this one's GPU, and return its supervisor."""
        another = WorkerSupervisor(Worker(self.gpu, opens=False, gate=self.worker.gate))
        another.gpu_uuid, another.pool, another.phase = self.gpu_uuid, self.pool, Phase.STARTING
        another.busy, another._hello_received, another.slot = True, False, self.slot.share()
        return another

    @property
    def may_begin(self) -> bool:
        """Whether it can take on a job."""
        return self.phase is Phase.FREE and self.slot.has_room

    def assign(self, job: Job) -> None:
        """Take on a job."""
        job.stopwatch.enter("set up")
        self.job, self.verdict, self.failure = job, None, None
        self.slot.begin()
        self._one_at_a_time, self._unexplained_deaths = self.gpu is None, 0
        self._slowest_s = None
        self.phase = Phase.SETTING_UP

    def release(self) -> Job:
        """Hand back a job that is done and be free for the next."""
        assert self.job is not None
        job, self.job, self.phase = self.job, None, Phase.FREE
        self.slot.end()
        job.stopwatch.enter("")
        return job

    def take_finished(self) -> list[tuple[Config, Outcome]]:
        """Return the job's trials that ended since the last call, in their order."""
        finished, self._finished = self._finished, []
        return finished

    def step(self, *, late: bool = False, stopping: bool = False) -> None:
        """Give the worker what there is to do.

        Args:
            late: begin no new trial but the default's, and play the finals over what there is; a problem without any
                outcome is given up.
            stopping: begin nothing new at all.
        """
        if self.busy or self.phase in (Phase.ABSENT, Phase.DONE):
            return
        if stopping:
            self.phase = Phase.DONE if self.job else self.phase
        elif not self._hello_received:
            if self._may_allocate():
                self._open()
        elif self.slot.others and self.slot.holds_memory and not self.slot.is_set:
            self._enter("set up")
            self._ask(messages.ClearProblem())
        elif self.job is not None:
            try:
                self._go_on(self.job, late=late)
            except KernelError as e:
                self._end(str(e))

    def _go_on(self, job: Job, *, late: bool) -> None:
        if late and not job.outcomes:
            self._end(SPENT)
        elif not self.slot.is_set:
            if self._may_allocate():
                self.slot.holds_memory = True
                self._ask(messages.SetProblem(job.problem))
        elif self.phase is Phase.SEARCHING:
            self._search(job, late=late)
        elif finalists := job.finalists():
            job.stopwatch.enter("finals")
            self._ask(messages.PlayFinals(tuple(finalists), len(job.rejected), job.strategy.rounds))
        else:
            self._end(SPENT if late else f"no config worked{job.failure_summary}")

    def _may_allocate(self) -> bool:
        """Return whether the worker may allocate operands now."""
        self._enter("set up" if self.slot.may_allocate else "memory")
        return self.slot.may_allocate

    def _enter(self, phase: str) -> None:
        if self.job is not None:
            self.job.stopwatch.enter(phase)

    def receive(self, *, stopping: bool = False) -> None:
        """Take one reply; call it when the worker's connection is readable."""
        try:
            reply = self.worker.receive()
        except WorkerDiedError as e:
            self._handle_death(e, stopping=stopping)
        else:
            self._take(reply)

    def check_alive(self) -> None:
        """Replace a worker that has been silent for too long."""
        if not self.busy:
            return
        try:
            self.worker.check_alive()
        except WorkerDiedError as e:
            self._handle_death(e)

    def close(self) -> None:
        """End the worker."""
        self.worker.kill()

    def _search(self, job: Job, *, late: bool) -> None:
        if late:
            job.abandon()
        urgency = Urgency.NOW if self.slot.is_first else Urgency.BESIDE
        batch, decided = job.take(1 if self._one_at_a_time else BATCH, self.pool, urgency)
        for config, outcome in decided:
            self._finish(config, outcome)
        if batch:
            job.stopwatch.enter("search")
            self._in_flight = batch
            self._ask(messages.Measure(tuple(batch), job.strategy.drop))
        elif job.searching:
            job.stopwatch.enter("compile")
        elif not decided:
            # Otherwise the search learns of these outcomes first and may propose more.
            self.phase = Phase.FINALS

    def _open(self) -> None:
        self.busy = True
        try:
            self.worker.open()
        except WorkerDiedError as e:
            self._handle_death(e)

    def _ask(self, request: messages.Request) -> None:
        self.busy = True
        self._request_begun, self._asked = False, time.monotonic()
        try:
            self.worker.send(request, slowest_s=self._slowest_s if isinstance(request, messages.Measure) else None)
        except WorkerDiedError as e:
            self._handle_death(e)

    def _take(self, reply: messages.Reply) -> None:
        match reply:
            case messages.Heartbeat():
                self._request_begun = True
            case messages.Importing() | messages.Waiting():
                pass
            case messages.Result():
                self._take_result(reply)
            case _:
                self._take_last(reply)

    def _take_result(self, result: messages.Result) -> None:
        self._deaths = 0
        if result.outcome.state is State.COMPLETE:
            self._slowest_s = max(self._slowest_s or 0.0, time.monotonic() - self._asked)
        self._settle(result.config, result.outcome)

    def _take_last(self, reply: messages.Reply) -> None:
        """Take the reply that ends a request."""
        self.busy = False
        match reply:
            case messages.Hello():
                self._hello_received = True
                self.phase = Phase.FREE if self.phase is Phase.STARTING else self.phase
            case messages.Ready():
                self._set(reply.nbytes)
            case messages.ProblemCleared():
                self.slot.holds_memory = False
            case messages.Refused():
                self._refused(reply)
            case messages.Idle(context_lost=True):
                self._replace_worker()
            case messages.FinalsPlayed():
                self._decide(reply)

    def _set(self, nbytes: int) -> None:
        assert self.job is not None
        self.phase = Phase.SEARCHING
        self.slot.set_up(nbytes / max(1, self.job.device.memory_bytes))
        if self.slot.is_alone and self.slot.shares_memory:
            self._restart_alone()

    def _refused(self, reply: messages.Refused) -> None:
        if self.phase is Phase.STARTING:
            self._stay_absent(reply.message)
        elif not self._hello_received:
            raise SweepError(f"a new worker found its device gone: {reply.message}")
        else:
            self.slot.holds_memory = self.slot.holds_memory and self.slot.is_set
            if reply.no_memory and self.slot.shares_memory:
                self._restart_alone()
            else:
                self._end(reply.message)

    def _restart_alone(self) -> None:
        """Set the problem up once more when no other problem takes the GPU's memory, and go on from there."""
        self.slot.restart_alone()
        self.phase = Phase.SETTING_UP

    def _stay_absent(self, reason: str) -> None:
        _log.debug("GPU %s has a worker less: %s", self.gpu, reason)
        self.worker.kill()
        self.slot.leave()
        self.busy, self.phase = False, Phase.ABSENT

    def _decide(self, played: messages.FinalsPlayed) -> None:
        assert self.job is not None
        if self.slot.shares_memory and any(map(ran_out_of_memory, played.rejected.values())):
            self._restart_alone()
            return
        self._deaths = self._given_up = 0
        self.job.rejected |= played.rejected
        try:
            self.verdict = self.job.verdict(played.times)
        except KernelError as e:
            self._end(str(e))
            return
        if self.verdict is not None or not self.job.finalists():
            self._end("every finalist failed its check")

    def _settle(self, config: Config, outcome: Outcome) -> None:
        """Record a trial's outcome; a config that is not being searched failed in the finals and is rejected."""
        assert self.job is not None
        if config in self._in_flight:
            self._in_flight.remove(config)
            if self.slot.shares_memory and ran_out_of_memory(outcome.message):
                self.job.put_back([config])
                self._restart_alone()
            else:
                self._finish(config, outcome)
        else:
            self.job.rejected[config.digest] = outcome.message

    def _finish(self, config: Config, outcome: Outcome) -> None:
        assert self.job is not None
        if self.pool is not None and (key := self.job.key(config)) is not None:
            result = self.pool.result(key)
            if isinstance(result, Compiled):
                outcome = dataclasses.replace(outcome, resources=result.resources)
        outcome = dataclasses.replace(outcome, gpu_uuid=self.gpu_uuid)
        self.job.finish(config, outcome)
        self._finished.append((config, outcome))

    def _end(self, failure: str) -> None:
        self.phase = Phase.DONE
        self.failure = None if self.verdict else failure

    def _handle_death(self, death: WorkerDiedError, *, stopping: bool = False) -> None:
        """Record what the worker died of, put its other configs back, and start another worker."""
        _log.debug("%s at %s", death, death.config)
        if self.phase is Phase.STARTING:
            self._stay_absent(str(death))
            return
        if stopping:
            self.busy = False
            self.phase = Phase.DONE if self.job else Phase.FREE
            return
        if self.job is not None:
            self._attribute_death(death)
        self._replace_worker()

    def _attribute_death(self, death: WorkerDiedError) -> None:
        self._deaths += 1
        culprit = death.config
        if culprit is None and self._request_begun and len(self._in_flight) == 1:
            culprit = self._in_flight[0]
        if culprit is None:
            # Measuring one config at a time from here on shows which one kills the worker.
            self._one_at_a_time = True
            self._unexplained_deaths += 1
        else:
            if death.state is State.TIMEOUT:
                self._slowest_s = self._slowest_s or 0.0
            self._settle(culprit, Outcome(death.state, str(death)))
        if self._deaths >= DEATHS_IN_A_ROW:
            self._give_up(death)
        elif self._unexplained_deaths >= MAX_UNEXPLAINED_DEATHS:
            self._end(f"the worker died {MAX_UNEXPLAINED_DEATHS} times: {death}")

    def _give_up(self, death: WorkerDiedError) -> None:
        reason = f"{self._deaths} workers died in a row: {death}"
        self._deaths = 0
        self._given_up += 1
        if self._given_up > 1:
            raise SweepError(f"{reason}; type `tuner doctor`")
        self._end(reason)

    def _replace_worker(self) -> None:
        """Start another worker. Its `Hello` is the next reply awaited; then the problem is set up anew."""
        self.worker.kill()
        if self.job is not None:
            self.job.put_back(self._in_flight)
        self._in_flight = []
        self._hello_received = False
        self.slot.vacate()
        self.worker = Worker(self.gpu, opens=not self.slot.others, gate=self.worker.gate)
        self.busy = True
