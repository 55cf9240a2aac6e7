"""The contest's child: prepares the contestants of one problem and plays the paired rounds."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.bench.messages import Begun, Play, Played
from tuner.bench.score import AUTOTUNE, INDUCTOR, OURS, TUNERS, VENDOR
from tuner.kernel import Inputs, KernelSpec, registry
from tuner.sweep import finals, verify
from tuner.sweep.device_session import Station, attend
from tuner.sweep.messages import Beat, Refused
from tuner.sweep.process import forget_output

if TYPE_CHECKING:
    import torch

Contestant = Callable[[Any], "torch.Tensor"]
"""Computes one set of inputs and returns the output: the set's own, or a new one."""
_SEED = 2_000_003
"""Of the inputs that results are checked on: no timed set has them."""


def serve(connection: Connection, gpu: int | None, log: str) -> None:
    """Run in the child: answer requests until the pipe closes."""
    attend(connection, gpu, log, functools.partial(Referee, scratch=Path(log).parent))


class Referee:
    """The child's side: a device, and one problem after the other."""

    def __init__(self, station: Station, *, scratch: Path) -> None:
        self._station = station
        self._scratch = scratch

    def answer(self, request: Play, connection: Connection) -> bool:
        """Play one problem; False when the CUDA context was lost."""
        import torch

        if set(request.contestants) & set(TUNERS):
            # What they take to tune is told as of a first start: from caches that end with this process.
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
                os.environ[name] = str(self._scratch / name.lower())
        torch.cuda.empty_cache()
        try:
            played = _Match(self._station, request, connection).play()
        except (torch.cuda.OutOfMemoryError, MemoryError) as e:
            connection.send(Refused(f"operands and reference do not fit into memory: {_first_line(e)}"))
            return True
        connection.send(played)
        return played.poisoned_by is None


class _Match:
    """One problem: its inputs, its reference, and those who got to the rounds."""

    def __init__(self, station: Station, request: Play, connection: Connection) -> None:
        self._at, self._request, self._connection = station, request, connection
        problem = request.problem
        self._spec: KernelSpec = registry.find(problem.op, request.config.kernel)
        make = functools.partial(self._spec.make_inputs, problem, station.torch_device)
        self._fresh: Inputs = make(_SEED)
        self._reference = self._spec.reference(self._fresh)
        count = station.timer.buffer_sets(self._fresh.nbytes)
        self._sets: list[Inputs] = [make(seed) for seed in range(count)]
        self._shots: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}
        self._tuning_s: dict[str, float] = {}

    def play(self) -> Played:
        """Prepare everybody, then play."""
        for name in self._request.contestants:
            forget_output()
            self._connection.send(Begun(name))
            try:
                self._prepare(name)
            except NotImplementedError as e:
                self._reasons[name] = _first_line(e)
            except Exception as e:  # noqa: BLE001  whatever a rival's compiler or launch raised is its reason
                self._reasons[name] = f"{type(e).__name__}: {_first_line(e)}"
                if self._context_is_lost():
                    return Played({}, self._reasons, self._tuning_s, poisoned_by=name)
        timer, rounds = self._at.timer, self._request.rounds or self._at.timer.final_rounds
        times = finals.play(
            list(self._shots),
            self._fire,
            seed=_SEED,
            rounds=rounds,
            # Nobody leaves before the end: every rival is compared over the same rounds.
            max_rounds=rounds,
            flagged=lambda: self._at.clocks.read().flagged,
        )
        timer.synchronize()
        return Played(times, self._reasons, self._tuning_s)

    def _prepare(self, name: str) -> None:
        """Check what a contestant computes, then make its shot."""
        contestant = self._contestant(name)
        verify.poison(self._fresh)
        start = time.perf_counter()
        out = contestant(self._fresh)
        self._at.timer.synchronize()
        if name in TUNERS:
            self._tuning_s[name] = time.perf_counter() - start
        # The vendor's library is what results are compared with, right or wrong.
        if name != VENDOR and (failure := self._failure(out)) is not None:
            self._reasons[name] = f"wrong result: {failure}"
            return
        outputs: dict[int, torch.Tensor] = {}

        def call(index: int) -> None:
            # Held until its turn comes round again: a new output must not land in the memory just written.
            outputs[index] = contestant(self._sets[index])

        timer = self._at.timer
        self._shots[name] = timer.capture(call, timer.estimate_us(call), len(self._sets))

    def _contestant(self, name: str) -> Contestant:
        problem, spec, config = self._request.problem, self._spec, self._request.config
        if name == OURS:
            return lambda inputs: _into_output(inputs, lambda: spec.launch(inputs, config))
        if name == VENDOR:
            return lambda inputs: _into_output(inputs, lambda: spec.vendor(inputs))
        if name == AUTOTUNE:
            from tuner.bench import tutorial

            if (reason := tutorial.refusal(problem)) is not None:
                raise NotImplementedError(reason)
            return tutorial.multiply
        assert name == INDUCTOR, name
        from tuner.bench import inductor

        if (reason := inductor.refusal(problem)) is not None:
            raise NotImplementedError(reason)
        return inductor.compiled(problem)

    def _failure(self, out: torch.Tensor) -> str | None:
        problem = self._request.problem
        tolerance = self._spec.tolerance(problem)
        if out is self._fresh.output:
            return verify.check(self._fresh, self._reference, problem.k, tolerance).failure
        return verify.Check(verify.error(out, self._reference, problem.k), False, tolerance).failure

    def _fire(self, names: Sequence[str]) -> list[float]:
        self._connection.send(Beat(None))
        return self._at.timer.fire([self._shots[name] for name in names])

    def _context_is_lost(self) -> bool:
        try:
            self._at.timer.synchronize()
        except Exception:  # noqa: BLE001  whatever it raises, nothing works on this context any more
            return True
        return False


def _into_output(inputs: Inputs, launch: Callable[[], None]) -> torch.Tensor:
    launch()
    return inputs.output


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
