"""The parent of a contest: looks configs up, has its child play them, and replaces a child that dies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType

from tuner.bench.child import serve
from tuner.bench.messages import Begun, Play, Played
from tuner.bench.roof import is_memory_bound
from tuner.bench.score import OURS, TUNERS, Heat, Row, figures
from tuner.errors import KernelError
from tuner.kernel import registry
from tuner.lookup.decision import Match
from tuner.lookup.lookup import resolver
from tuner.problem import Problem
from tuner.sweep.child import Child, WorkerDiedError
from tuner.sweep.messages import Beat, Refused

STEP_LIMIT_S = 180.0
"""Between two signs of life: inputs and reference, a contestant's compile and check, a round."""
TUNING_LIMIT_S = 900.0
"""What a rival that tunes itself gets on top."""


class Contest:
    """Ours against rivals on one device; a context manager.

    Attributes:
        device, environment: what is played on, and under which versions.
    """

    def __init__(self, gpu: int | None, rivals: Sequence[str], *, rounds: int | None = None) -> None:
        """Start the child.

        Args:
            gpu: CUDA index, None for the interpreter.
            rivals: of `score.RIVALS`.
            rounds: paired rounds; None for the device's own number.

        Raises:
            SweepError: the child did not start.
            DeviceError: the device is not there.
        """
        self._gpu, self._rivals, self._rounds = gpu, tuple(rivals), rounds
        self._child = Child(serve, gpu, beat_limit_s=STEP_LIMIT_S)
        self._begun: str | None = None
        try:
            hello = self._child.hello()
        except BaseException:
            self._child.kill()
            raise
        self.device, self.environment = hello.device, hello.environment

    def __enter__(self) -> Contest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._child.kill()

    def rows(self, heats: Iterable[Heat], begun: Callable[[Problem, str], None]) -> Iterator[Row]:
        """Play the heats one after the other; yields each row as it is done.

        Args:
            heats: the problems.
            begun: told of each contestant before it is prepared.

        Raises:
            SweepError: a child died and no new one could be started.
        """
        for heat in heats:
            yield self._row(heat, begun)

    def _row(self, heat: Heat, begun: Callable[[Problem, str], None]) -> Row:
        problem = heat.problem
        try:
            match = resolver().explanation(problem, self.device)[2].match
        except KernelError as e:
            absent = dict.fromkeys((OURS, *self._rivals), str(e))
            return Row(heat, None, {}, absent, problem.flops, problem.bytes_moved, False)
        played = self._play(problem, match, begun)
        spec = registry.find(problem.op, match.kernel)
        flops, moved = spec.flops(problem), spec.bytes_moved(problem)
        bound = is_memory_bound(problem, flops, moved, self.device)
        return Row(heat, match, figures(played.times, played.tuning_s), played.reasons, flops, moved, bound)

    def _play(self, problem: Problem, match: Match, begun: Callable[[Problem, str], None]) -> Played:
        """Play until a child gets through: whoever killed one, or lost its CUDA context, is left out of the next."""
        names = [OURS, *self._rivals]
        reasons: dict[str, str] = {}
        if self._gpu is None:
            reasons = {name: "needs a GPU: the interpreter plays vendor only" for name in names if name in TUNERS}
        while playing := [name for name in names if name not in reasons]:
            try:
                played = self._ask(Play(problem, match.config, tuple(playing), self._rounds), begun)
            except WorkerDiedError as e:
                reasons |= dict.fromkeys([self._begun] if self._begun else playing, str(e))
            else:
                reasons |= played.reasons
                if played.poisoned_by is None:
                    return Played(played.times, reasons, played.tuning_s)
            self._replace_child()
        return Played({}, reasons, {})

    def _ask(self, request: Play, begun: Callable[[Problem, str], None]) -> Played:
        self._begun = None
        self._child.ask(request, STEP_LIMIT_S)
        while True:
            reply = self._child.wait()
            if isinstance(reply, Begun):
                self._begun = reply.contestant
                begun(request.problem, reply.contestant)
                if reply.contestant in TUNERS:
                    self._child.excuse(TUNING_LIMIT_S)
            elif isinstance(reply, Beat):
                # The rounds: from here on nobody alone is to blame.
                self._begun = None
            elif isinstance(reply, Refused):
                return Played({}, dict.fromkeys(request.contestants, reply.message), {})
            else:
                assert isinstance(reply, Played)
                return reply

    def _replace_child(self) -> None:
        self._child.kill()
        self._child = Child(serve, self._gpu, beat_limit_s=STEP_LIMIT_S)
        self._child.hello()
