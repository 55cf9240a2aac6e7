"""Measures one problem on one device: checks configs, times them, plays the finals. Runs in the GPU's worker."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tuner.errors import in_short
from tuner.kernel import Inputs, KernelSpec, registry
from tuner.kernel.config import Config
from tuner.launch.plan import recorded
from tuner.problem import Problem
from tuner.store.records import Outcome, State
from tuner.sweep import buffer_sets, finals, verify
from tuner.sweep.host_errors import host_error_in
from tuner.sweep.nvml import GpuMonitor, GpuSample
from tuner.sweep.timer import Timer

VENDOR = "vendor"
_FINAL_SEED = 1_000_003
_REPEATS = 2


class ContextLostError(Exception):
    """The CUDA context is lost; carries the config that lost it, and its outcome."""

    def __init__(self, config: Config, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.config = config
        self.outcome = outcome


@dataclass(slots=True)
class _Candidate:
    """A config whose result was right, and the capture to replay."""

    config: Config
    capture: Any
    error: float
    samples: list[float]


@dataclass(frozen=True, slots=True)
class _Tried:
    """A config whose result was right: its error, and what launches it on one of the sets."""

    error: float
    call: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a launch must write: the float64 reference, and of an invariant problem the bits."""

    reference: Any
    witness: Any


class Measurement:
    """Inputs, reference and timer of one problem. A config that loses the CUDA context raises ContextLostError."""

    def __init__(
        self, spec: KernelSpec, problem: Problem, timer: Timer, monitor: GpuMonitor, torch_device: str
    ) -> None:
        """Make the buffer sets and the float64 reference, which are the same for all kernels of the op."""
        self._spec, self._problem, self._timer, self._monitor = spec, problem, timer, monitor
        self._torch_device = torch_device
        first = spec.make_inputs(problem, torch_device, 0)
        count = timer.buffer_sets(first.nbytes)
        self._sets = [first, *(spec.make_inputs(problem, torch_device, seed) for seed in range(1, count))]
        self._expected: _Expected | None = self._expect(first)
        self._tolerance = spec.tolerance(problem)
        self._best_us = float("inf")

    def search(
        self, configs: Sequence[Config], heartbeat: Callable[[Config | None], None], *, drop: Sequence[float]
    ) -> Iterator[tuple[Config, Outcome]]:
        """Measure configs by single replays in rotation; yield each with its outcome, failures first.

        Args:
            configs: configs of any kernels of the op.
            heartbeat: called with each config before its binary is read and before the device is touched for it, and
                with None before all are replayed, and before others are waited for.
            drop: every config is replayed once, and then once more for each of these factors if its time is within
                that factor of the fastest so far.
        """
        candidates: list[_Candidate] = []
        if self._timer.launches_binaries:
            for config in configs:
                heartbeat(config)
                self._read_binary(config)
            heartbeat(None)
        with self._timer.gate.shared():
            for config in configs:
                heartbeat(config)
                candidate = self._prepare(config)
                if isinstance(candidate, Outcome):
                    yield config, candidate
                else:
                    candidates.append(candidate)
            heartbeat(None)  # nobody is to blame for what happens while it waits
        with self._timer.gate.alone():
            for candidate in candidates:
                heartbeat(candidate.config)
                candidate.capture = self._timer.warm_up(candidate.capture)
            heartbeat(None)
            sample = self._rotate(candidates, drop)
            for candidate in candidates:
                candidate.capture = None  # frees the graph while nobody else is timing
        for candidate in candidates:
            yield candidate.config, _complete(candidate, sample)

    def finals(
        self,
        finalists: Sequence[Config],
        *,
        seed: int,
        heartbeat: Callable[[Config | None], None],
        rounds: int | None = None,
    ) -> tuple[dict[str, list[float]], dict[str, str]]:
        """Check the finalists on fresh inputs, then run them and the vendor's library in paired rounds.

        The rounds are played on operands in other memory than the search's, because some configs are a few percent
        faster or slower by where those lie. The search prefers configs that its own memory flatters.

        Args:
            finalists: configs, the default among them.
            seed: seeds the fresh inputs and the shuffles.
            heartbeat: called with each config before the device is touched for it, and with None before each round.
            rounds: how many all play, if that is fewer than the timer's.

        Returns:
            Times by config digest ("vendor" for the library), and the reasons why finalists were rejected.
        """
        with self._timer.gate.shared():
            captures, rejected = self._prepare_finals(finalists, _FINAL_SEED + seed, heartbeat)

        def replay(names: Sequence[str]) -> list[float]:
            heartbeat(None)
            return self._timer.replay([captures[name] for name in names])

        with self._timer.gate.alone():
            heartbeat(None)
            captures |= {name: self._timer.warm_up(capture) for name, capture in captures.items()}
            times = finals.play(
                list(captures),
                replay,
                seed=seed,
                beside=(VENDOR,),
                throttled=lambda: self._monitor.read().throttled,
                rounds=min(rounds or self._timer.final_rounds, self._timer.final_rounds),
                max_rounds=self._timer.max_final_rounds,
            )
            captures.clear()  # frees the graphs while nobody else is timing
        return times, rejected

    def _prepare_finals(
        self, finalists: Sequence[Config], seed: int, heartbeat: Callable[[Config | None], None]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Check the finalists on fresh inputs; return what to replay by name, and why others are rejected."""
        # The search is over, so its reference can make room for the next.
        self._expected = None
        fresh = self._spec.make_inputs(self._problem, self._torch_device, seed)
        expected = self._expect(fresh)
        self._move()
        captures: dict[str, Any] = {}
        rejected: dict[str, str] = {}
        for config in finalists:
            heartbeat(config)
            tried = self._try(config, fresh, expected)
            if isinstance(tried, Outcome):
                rejected[config.digest] = tried.message
            else:
                captures[config.digest] = self._capture(tried.call)
        heartbeat(None)
        if (capture := self._capture_vendor()) is not None:
            captures[VENDOR] = capture
        return captures, rejected

    def _move(self) -> None:
        if count := self._timer.final_sets(self._sets[0].nbytes):
            # The old ones are freed afterwards: the allocator would give the new ones their memory.
            self._sets = [self._spec.make_inputs(self._problem, self._torch_device, seed) for seed in range(count)]

    def _read_binary(self, config: Config) -> None:
        """Read what a compiler left in Triton's cache: a third of preparing a config, while others may time.

        It needs no device. What fails here fails again where the config is launched, and is its outcome there.
        """
        spec = registry.find(self._problem.op, config.kernel, self._problem.source)
        if spec.compiles_ahead:
            with contextlib.suppress(Exception):
                spec.compile(self._problem, config)

    def _prepare(self, config: Config) -> _Candidate | Outcome:
        assert self._expected is not None
        tried = self._try(config, self._sets[0], self._expected)
        if isinstance(tried, Outcome):
            return tried
        return _Candidate(config, self._capture(tried.call), tried.error, [])

    def _expect(self, inputs: Inputs) -> _Expected:
        invariance = self._spec.invariance if self._problem.invariant else None
        return _Expected(self._spec.reference(inputs), invariance and invariance.witness(inputs))

    def _try(self, config: Config, inputs: Inputs, expected: _Expected) -> _Tried | Outcome:
        """Return what a right result leaves, or the outcome of a config that failed or was wrong."""
        verify.poison(inputs)
        try:
            launch = registry.find(self._problem.op, config.kernel, self._problem.source).launch
            with recorded() as seen:
                launch(inputs, config)
            self._timer.synchronize()
        except Exception as e:
            # This is the boundary of a child process: whatever the launch raised is the config's outcome.
            outcome = failure_of(e)
            if context_is_lost(self._timer):
                raise ContextLostError(config, outcome) from e
            return outcome
        found = verify.check(inputs, expected.reference, self._problem.k, self._tolerance, witness=expected.witness)
        if found.failure is not None:
            return Outcome(State.WRONG_RESULT, found.failure, error=found.error)
        sets = self._sets
        again = buffer_sets.launches_again(seen, inputs, sets)
        return _Tried(found.error, again or (lambda index: launch(sets[index], config)))

    def _rotate(self, candidates: list[_Candidate], drop: Sequence[float]) -> GpuSample:
        sample = GpuSample()
        throttle = 0
        for factor in (math.inf, *drop)[: self._timer.search_rounds]:
            near = [one for one in candidates if not one.samples or min(one.samples) <= factor * self._best_us]
            for _repeat in range(1 + _REPEATS):
                figures = self._timer.replay([candidate.capture for candidate in near])
                sample = self._monitor.read()
                throttle |= sample.throttle or 0
                if not sample.throttled:
                    break
            for candidate, figure in zip(near, figures, strict=True):
                candidate.samples.append(figure)
            self._best_us = min([self._best_us, *figures])
        return sample if sample.throttle is None else replace(sample, throttle=throttle)

    def _capture(self, call: Callable[[int], None]) -> Any:
        return self._timer.prepare(call, len(self._sets))

    def _capture_vendor(self) -> Any | None:
        results: dict[int, Any] = {}

        def call(index: int) -> None:
            # Kept until this set is used again, so that no new result lands in the memory just written.
            results[index] = self._spec.vendor(self._sets[index])

        try:
            call(0)
            self._timer.synchronize()
            return self._capture(call)
        except (NotImplementedError, RuntimeError):
            # torch refuses some dtypes and shapes (e5m2 times e5m2, odd sizes), and a call that waits for the device
            # cannot be captured: these problems have no vendor figure.
            if context_is_lost(self._timer):
                raise
            return None


def context_is_lost(timer: Timer) -> bool:
    """Return whether nothing works on the CUDA context any more."""
    try:
        timer.synchronize()
    except Exception:  # noqa: BLE001  every error of an idle device means that its context is lost
        return True
    return False


def failure_of(error: Exception) -> Outcome:
    """Return the outcome of a launch that raised."""
    if (host_error := host_error_in(error)) is not None:
        # `is_of_machine` knows it by its own message, and not by that of what was raised from it.
        return Outcome(State.CRASHED, in_short(host_error))
    resources = type(error).__name__ in ("OutOfResources", "OutOfMemoryError")
    return Outcome(State.OUT_OF_RESOURCES if resources else State.RUNTIME_ERROR, in_short(error))


def _complete(candidate: _Candidate, sample: GpuSample) -> Outcome:
    p20, median, p80 = (float(q) for q in np.percentile(candidate.samples, [20, 50, 80]))
    return Outcome(
        State.COMPLETE,
        median_us=median,
        p20_us=p20,
        p80_us=p80,
        samples=len(candidate.samples),
        error=candidate.error,
        sm_clock_mhz=sample.sm_clock_mhz,
        power_w=sample.power_w,
        throttle=sample.throttle,
    )
