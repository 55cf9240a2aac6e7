"""The parent of a contest: looks configs up, has its child measure them, and replaces a child that dies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from tuner.bench.child import ContestRequest, ContestResult, Preparing, serve
from tuner.bench.score import OURS, TUNERS, ListedProblem, Row, figures, is_memory_bound
from tuner.errors import KernelError
from tuner.kernel import registry
from tuner.lookup.decision import Match
from tuner.lookup.lookup import resolver
from tuner.problem import Problem
from tuner.sweep import gpu_lock
from tuner.sweep.child import Child, WorkerDiedError
from tuner.sweep.messages import Heartbeat, Refused

STEP_LIMIT_S = 180.0
"""Time between two signs of life: for inputs and reference, for a contestant's compile and check, or for a round."""
TUNING_LIMIT_S = 900.0
"""Additional time for a rival that tunes itself."""


class Contest(AbstractContextManager["Contest"]):
    """Ours against rivals on one device, measured by a child process; a context manager.

    Attributes:
        device, environment: where it plays, as the child found them.
    """

    def __init__(self, gpu: int | None, rivals: Sequence[str], *, rounds: int | None = None) -> None:
        """Start the child and lock the GPU, for which it waits while another process has it.

        Args:
            gpu: the CUDA index; None for the interpreter.
            rivals: the names of the rivals, see `score`.
            rounds: how many paired rounds each problem is played; None for the device's own number.

        Raises:
            SweepError: the child cannot be started.
            DeviceError: the GPU is not there.
        """
        self._gpu, self._rivals, self._rounds = gpu, tuple(rivals), rounds
        self._child = Child(serve, gpu, heartbeat_limit_s=STEP_LIMIT_S)
        self._preparing: str | None = None
        hello = self._child.hello()
        try:
            self._lock = gpu_lock.hold([hello.gpu_uuid])
        except BaseException:
            self._child.kill()
            raise
        self.device, self.environment = hello.device, hello.environment

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._child.kill()

    def rows(self, problems: Iterable[ListedProblem], preparing: Callable[[Problem, str], None]) -> Iterator[Row]:
        """Measure problems one after the other.

        Args:
            problems: what is measured.
            preparing: called with the problem and a contestant's name before that contestant is prepared.

        Raises:
            SweepError: the child died and cannot be started again.
        """
        for listed in problems:
            yield self._row(listed, preparing)

    def _row(self, listed: ListedProblem, preparing: Callable[[Problem, str], None]) -> Row:
        problem = listed.problem
        try:
            match = resolver().explanation(problem, self.device)[2].match
        except KernelError as e:
            absent = dict.fromkeys((OURS, *self._rivals), str(e))
            return Row(listed, None, {}, absent, problem.flops, problem.bytes_moved, False)
        played = self._play(problem, match, preparing)
        spec = registry.find(problem.op, match.kernel, problem.source)
        flops, moved = spec.flops(problem), spec.bytes_moved(problem)
        bound = is_memory_bound(problem, flops, moved, self.device)
        return Row(listed, match, figures(played.times, played.tuning_s), played.reasons, flops, moved, bound)

    def _play(self, problem: Problem, match: Match, preparing: Callable[[Problem, str], None]) -> ContestResult:
        """Repeat the contest without the contestants that kill a child or lose its CUDA context, until one succeeds."""
        names = [OURS, *self._rivals]
        reasons: dict[str, str] = {}
        if self._gpu is None:
            reasons = {name: "needs a GPU: the interpreter times vendor only" for name in names if name in TUNERS}
        while playing := [name for name in names if name not in reasons]:
            try:
                played = self._ask(ContestRequest(problem, match.config, tuple(playing), self._rounds), preparing)
            except WorkerDiedError as e:
                reasons |= dict.fromkeys([self._preparing] if self._preparing else playing, str(e))
            else:
                reasons |= played.reasons
                if played.context_lost_by is None:
                    return ContestResult(played.times, reasons, played.tuning_s)
            self._replace_child()
        return ContestResult({}, reasons, {})

    def _ask(self, request: ContestRequest, preparing: Callable[[Problem, str], None]) -> ContestResult:
        self._preparing = None
        self._child.ask(request, STEP_LIMIT_S)
        while True:
            reply = self._child.wait()
            if isinstance(reply, Preparing):
                self._preparing = reply.contestant
                preparing(request.problem, reply.contestant)
                if reply.contestant in TUNERS:
                    self._child.extend_deadline(TUNING_LIMIT_S)
            elif isinstance(reply, Heartbeat):
                # The rounds have begun, so a death from here on cannot be blamed on one contestant.
                self._preparing = None
            elif isinstance(reply, Refused):
                return ContestResult({}, dict.fromkeys(request.contestants, reply.message), {})
            else:
                assert isinstance(reply, ContestResult)
                return reply

    def _replace_child(self) -> None:
        self._child.kill()
        self._child = Child(serve, self._gpu, heartbeat_limit_s=STEP_LIMIT_S)
        self._child.hello()
