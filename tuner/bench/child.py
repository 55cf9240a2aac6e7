"""The contest's child: prepares the contestants of one problem and runs the paired rounds."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.bench.score import AUTOTUNE, OURS, TUNERS, VENDOR
from tuner.errors import first_line, in_short
from tuner.kernel import Inputs, KernelSpec, registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.sweep import finals, verify
from tuner.sweep.device_session import DeviceSession, serve_requests
from tuner.sweep.measure import context_is_lost
from tuner.sweep.messages import Heartbeat, too_large
from tuner.sweep.process import clear_output

if TYPE_CHECKING:
    import torch

Contestant = Callable[[Any], "torch.Tensor"]
"""Computes one set of inputs and returns the output, which is either the set's own tensor or a new one."""
_SEED = 2_000_003
"""Seeds the inputs that results are checked on; no timed set has them."""


@dataclass(frozen=True, slots=True)
class ContestRequest:
    """To the child: measure one problem.

    It answers by a `Preparing` for each contestant, a `Heartbeat` for each round and a `ContestResult`, or by `Refused`
    where the problem does not fit into memory.

    Attributes:
        problem: the problem.
        config: what ours launches.
        contestants: who takes part, of `score.OURS`, `VENDOR`, `INDUCTOR` and `AUTOTUNE`.
        rounds: how many rounds; None for the timer's own number.
    """

    problem: Problem
    config: Config
    contestants: tuple[str, ...]
    rounds: int | None


@dataclass(frozen=True, slots=True)
class Preparing:
    """From the child: it is about to touch the device for this contestant."""

    contestant: str


@dataclass(frozen=True, slots=True)
class ContestResult:
    """From the child: what was measured.

    Attributes:
        times: microseconds a call of each contestant that took part; the i-th of all come from the same round.
        reasons: why the other contestants did not take part.
        tuning_s: the seconds that self-tuning contestants tuned.
        context_lost_by: the contestant that lost the CUDA context; nothing was measured, and the child ends.
    """

    times: dict[str, list[float]]
    reasons: dict[str, str]
    tuning_s: dict[str, float]
    context_lost_by: str | None = None


def serve(connection: Connection, gpu: int | None, log: str) -> None:
    """Run in the child: answer requests until the pipe closes.

    Args:
        connection: the pipe to the parent.
        gpu: the CUDA index; None for the interpreter.
        log: the file that the child's output goes to; rivals that tune themselves have their caches beside it.
    """
    serve_requests(connection, gpu, log, functools.partial(ContestHandler, scratch=Path(log).parent))


class ContestHandler:
    """The child's side: a device, and one problem after another."""

    def __init__(self, session: DeviceSession, *, scratch: Path) -> None:
        self._session = session
        self._scratch = scratch

    def answer(self, request: ContestRequest, connection: Connection) -> bool:
        """Measure one problem; return False when the CUDA context was lost."""
        import torch

        if set(request.contestants) & set(TUNERS):
            # Their tuning time is that of a first start: the caches are new and end with this process.
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
                os.environ[name] = str(self._scratch / name.lower())
        torch.cuda.empty_cache()
        try:
            played = _ProblemContest(self._session, request, connection).play()
        except (torch.cuda.OutOfMemoryError, MemoryError) as e:
            connection.send(too_large(e))
            return True
        connection.send(played)
        return played.context_lost_by is None


class _ProblemContest:
    """One problem: its inputs, its reference, and the contestants that take part in the rounds."""

    def __init__(self, session: DeviceSession, request: ContestRequest, connection: Connection) -> None:
        self._session, self._request, self._connection = session, request, connection
        problem = request.problem
        self._spec: KernelSpec = registry.find(problem.op, request.config.kernel, problem.source)
        make = functools.partial(self._spec.make_inputs, problem, session.torch_device)
        self._fresh: Inputs = make(_SEED)
        self._reference = self._spec.reference(self._fresh)
        count = session.timer.buffer_sets(self._fresh.nbytes)
        self._sets: list[Inputs] = [make(seed) for seed in range(count)]
        self._captures: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}
        self._tuning_s: dict[str, float] = {}

    def play(self) -> ContestResult:
        """Prepare every contestant, then run the rounds."""
        for name in self._request.contestants:
            clear_output()
            self._connection.send(Preparing(name))
            try:
                self._prepare(name)
            except NotImplementedError as e:
                self._reasons[name] = first_line(e)
            except Exception as e:  # noqa: BLE001  whatever a rival's compiler or launch raised is its reason
                self._reasons[name] = in_short(e)
                if context_is_lost(self._session.timer):
                    return ContestResult({}, self._reasons, self._tuning_s, context_lost_by=name)
        timer, rounds = self._session.timer, self._request.rounds or self._session.timer.final_rounds
        times = finals.play(
            list(self._captures),
            self._replay,
            seed=_SEED,
            rounds=rounds,
            # Nobody leaves early, so that every rival is compared over the same rounds.
            max_rounds=rounds,
            throttled=lambda: self._session.monitor.read().throttled,
        )
        timer.synchronize()
        return ContestResult(times, self._reasons, self._tuning_s)

    def _prepare(self, name: str) -> None:
        """Check what a contestant computes, then capture it."""
        contestant = self._contestant(name)
        verify.poison(self._fresh)
        start = time.perf_counter()
        out = contestant(self._fresh)
        self._session.timer.synchronize()
        if name in TUNERS:
            self._tuning_s[name] = time.perf_counter() - start
        # The vendor's library takes part whatever its result, since it is the measure of speed.
        if name != VENDOR and (failure := self._failure(out)) is not None:
            self._reasons[name] = f"wrong result: {failure}"
            return
        outputs: dict[int, torch.Tensor] = {}

        def call(index: int) -> None:
            # Kept until this set is used again, so that no new output lands in the memory just written.
            outputs[index] = contestant(self._sets[index])

        self._captures[name] = self._session.timer.capture(call, len(self._sets))

    def _contestant(self, name: str) -> Contestant:
        problem, spec, config = self._request.problem, self._spec, self._request.config
        if name == OURS:
            return lambda inputs: _into_output(inputs, lambda: spec.launch(inputs, config))
        if name == VENDOR:
            return lambda inputs: _of_vendor(inputs, spec.vendor(inputs))
        from tuner.bench import inductor, tutorial

        rival = tutorial if name == AUTOTUNE else inductor
        if (reason := rival.refusal(problem)) is not None:
            raise NotImplementedError(reason)
        return tutorial.multiply if name == AUTOTUNE else inductor.compiled(problem)

    def _failure(self, out: torch.Tensor) -> str | None:
        problem = self._request.problem
        tolerance = self._spec.tolerance(problem)
        if out is self._fresh.output:
            return verify.check(self._fresh, self._reference, problem.k, tolerance).failure
        return verify.Comparison(verify.error(out, self._reference, problem.k), False, tolerance).failure

    def _replay(self, names: Sequence[str]) -> list[float]:
        self._connection.send(Heartbeat(None))
        return self._session.timer.replay([self._captures[name] for name in names])


def _of_vendor(inputs: Inputs, result: torch.Tensor | None) -> torch.Tensor:
    """What the library wrote: new memory where it has no `out=`."""
    return inputs.output if result is None else result


def _into_output(inputs: Inputs, launch: Callable[[], None]) -> torch.Tensor:
    launch()
    return inputs.output
