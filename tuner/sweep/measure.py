"""One problem on one device: check a config, time it, play the finals. Runs in the GPU's worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner.kernel import Inputs, KernelSpec, registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Outcome, State
from tuner.sweep import finals, verify
from tuner.sweep.clocks import Clocks, Reading
from tuner.sweep.timer import Timer

VENDOR = "vendor"
_FINAL_SEED = 1_000_003
_REPEATS = 2


class PoisonedError(Exception):
    """The CUDA context is lost; holds the outcome of the config that lost it."""

    def __init__(self, config: Config, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.config = config
        self.outcome = outcome


@dataclass(slots=True)
class _Entrant:
    """A config that ran and was right, ready to be replayed."""

    config: Config
    shot: Any
    error: float
    samples: list[float]


class Measurement:
    """Inputs, reference and clock of one problem."""

    def __init__(self, spec: KernelSpec, problem: Problem, timer: Timer, clocks: Clocks, torch_device: str) -> None:
        """Make the buffer sets and the float64 reference.

        Args:
            spec: any kernel of the op: inputs, reference and vendor call are the same for all of them.
            problem: what to measure.
            timer: of the device.
            clocks: of the device.
            torch_device: "cuda" or "cpu".
        """
        self._spec, self._problem, self._timer, self._clocks = spec, problem, timer, clocks
        self._torch_device = torch_device
        first = spec.make_inputs(problem, torch_device, 0)
        count = timer.buffer_sets(first.nbytes)
        self._sets = [first, *(spec.make_inputs(problem, torch_device, seed) for seed in range(1, count))]
        self._reference: Any = spec.reference(first)
        self._tolerance = spec.tolerance(problem)
        self._best_us = float("inf")

    def search(
        self, configs: Sequence[Config], beat: Callable[[Config | None], None], *, drop: Sequence[float]
    ) -> Iterator[tuple[Config, Outcome]]:
        """Measure configs by single replays in rotation; yields each with its outcome, failures first.

        Args:
            configs: of any kernels of the op.
            beat: told of each config before the device is touched for it, of None before all are replayed.
            drop: each is replayed once, and after that, for each factor in turn, again if it is within that factor of
                the fastest so far.

        Raises:
            PoisonedError: a config lost the CUDA context; the rest of `configs` has no outcome.
        """
        entrants: list[_Entrant] = []
        for config in configs:
            beat(config)
            entrant = self._enter(config)
            if isinstance(entrant, Outcome):
                yield config, entrant
            else:
                entrants.append(entrant)
        beat(None)
        reading = self._rotate(entrants, drop)
        for entrant in entrants:
            yield entrant.config, _complete(entrant, reading)

    def finals(
        self, finalists: Sequence[Config], *, seed: int, beat: Callable[[Config | None], None]
    ) -> tuple[dict[str, list[float]], dict[str, str]]:
        """Check the finalists on fresh inputs, then run them and the vendor's library in paired rounds.

        Args:
            finalists: the default config among them.
            seed: of the fresh inputs and of the shuffles.
            beat: told of each config before the device is touched for it, of None before each round.

        Returns:
            Times by config digest ("vendor" for the library), and the rejected finalists' reasons.

        Raises:
            PoisonedError: a finalist lost the CUDA context.
        """
        # The search is over: its reference makes room for the next.
        self._reference = None
        fresh = self._spec.make_inputs(self._problem, self._torch_device, _FINAL_SEED + seed)
        reference = self._spec.reference(fresh)
        shots: dict[str, Any] = {}
        rejected: dict[str, str] = {}
        for config in finalists:
            beat(config)
            failure = self._try(config, fresh, reference)
            if isinstance(failure, Outcome):
                rejected[config.digest] = failure.message
            else:
                shots[config.digest] = self._capture(self._call(config))
        beat(None)
        if (shot := self._vendor_shot()) is not None:
            shots[VENDOR] = shot

        def fire(names: Sequence[str]) -> list[float]:
            beat(None)
            return self._timer.fire([shots[name] for name in names])

        times = finals.play(
            list(shots),
            fire,
            seed=seed,
            beside=(VENDOR,),
            flagged=lambda: self._clocks.read().flagged,
            rounds=self._timer.final_rounds,
            max_rounds=self._timer.max_final_rounds,
        )
        return times, rejected

    def _enter(self, config: Config) -> _Entrant | Outcome:
        verdict = self._try(config, self._sets[0], self._reference)
        if isinstance(verdict, Outcome):
            return verdict
        return _Entrant(config, self._capture(self._call(config)), verdict, [])

    def _try(self, config: Config, inputs: Inputs, reference: Any) -> float | Outcome:
        """The error of a right result, or the outcome of a config that failed or was wrong."""
        verify.poison(inputs)
        try:
            registry.find(self._problem.op, config.kernel).launch(inputs, config)
            self._timer.synchronize()
        except Exception as e:
            # The boundary of a child process: whatever the launch raised is the config's outcome.
            outcome = failure_of(e)
            if self._context_is_lost():
                raise PoisonedError(config, outcome) from e
            return outcome
        found = verify.check(inputs, reference, self._problem.k, self._tolerance)
        if found.failure is not None:
            return Outcome(State.WRONG_RESULT, found.failure, error=found.error)
        return found.error

    def _rotate(self, entrants: list[_Entrant], drop: Sequence[float]) -> Reading:
        reading = Reading()
        throttle = 0
        for factor in (math.inf, *drop)[: self._timer.search_rounds]:
            near = [e for e in entrants if not e.samples or min(e.samples) <= factor * self._best_us]
            for _repeat in range(1 + _REPEATS):
                figures = self._timer.fire([entrant.shot for entrant in near])
                reading = self._clocks.read()
                throttle |= reading.throttle or 0
                if not reading.flagged:
                    break
            for entrant, figure in zip(near, figures, strict=True):
                entrant.samples.append(figure)
            self._best_us = min([self._best_us, *figures])
        return reading if reading.throttle is None else replace(reading, throttle=throttle)

    def _call(self, config: Config) -> Callable[[int], None]:
        launch = registry.find(self._problem.op, config.kernel).launch
        sets = self._sets
        return lambda index: launch(sets[index], config)

    def _capture(self, call: Callable[[int], None]) -> Any:
        return self._timer.capture(call, self._timer.estimate_us(call), len(self._sets))

    def _vendor_shot(self) -> Any | None:
        def call(index: int) -> None:
            self._spec.vendor(self._sets[index])

        try:
            call(0)
            self._timer.synchronize()
        except (NotImplementedError, RuntimeError):
            # torch refuses some dtypes and shapes (e5m2 times e5m2, odd sizes): such a problem has no vendor figure.
            return None
        return self._capture(call)

    def _context_is_lost(self) -> bool:
        try:
            self._timer.synchronize()
        except Exception:  # noqa: BLE001  whatever it raises, nothing works on this context any more
            return True
        return False


def failure_of(error: Exception) -> Outcome:
    """The outcome of a launch that raised."""
    name = type(error).__name__
    first_line = (str(error).strip().splitlines() or [""])[0]
    resources = name in ("OutOfResources", "OutOfMemoryError")
    state = State.OUT_OF_RESOURCES if resources else State.RUNTIME_ERROR
    return Outcome(state, f"{name}: {first_line}"[:500])


def _complete(entrant: _Entrant, reading: Reading) -> Outcome:
    p20, median, p80 = (float(q) for q in np.percentile(entrant.samples, [20, 50, 80]))
    return Outcome(
        State.COMPLETE,
        median_us=median,
        p20_us=p20,
        p80_us=p80,
        samples=len(entrant.samples),
        error=entrant.error,
        sm_clock_mhz=reading.sm_clock_mhz,
        power_w=reading.power_w,
        throttle=reading.throttle,
    )
