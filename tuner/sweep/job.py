"""One problem of a sweep: what is left to try, how trials ended, and who won.

It talks to the compile pool, but to no worker and to no store.
"""

from __future__ import annotations

import functools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from tuner.errors import KernelError
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.store.records import KernelVersion, Outcome, State, Verdict
from tuner.sweep import finals
from tuner.sweep.compile_child import CompileResult, Failed
from tuner.sweep.compile_pool import CompilePool, Urgency
from tuner.sweep.measure import VENDOR
from tuner.sweep.search import RefinedSearch, Strategy, by_time, failures_of, times_of
from tuner.sweep.search_task import SearchTask

SPENT = "the time budget is spent"
_MESSAGE_CHARACTERS = 200
"""How much of a trial's message becomes part of a problem's."""


class Stopwatch:
    """Adds up a problem's wall time by phase, one phase at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spent: dict[str, float] = {}
        self._phase = ""
        self._since = 0.0

    def enter(self, phase: str) -> None:
        """Begin a phase or go on with it; "" stops the watch."""
        now = self._clock()
        if self._phase:
            self._spent[self._phase] = self._spent.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    @property
    def phases_s(self) -> dict[str, float]:
        """Seconds spent in each phase, in the order they were first entered."""
        if not self._phase:
            return dict(self._spent)
        return {**self._spent, self._phase: self._spent.get(self._phase, 0.0) + self._clock() - self._since}

    @property
    def seconds(self) -> float:
        """Seconds spent in all phases together."""
        return sum(self.phases_s.values())


class Job:
    """The search for one problem's winner.

    Attributes:
        problem, device, strategy, specs, default: as in the search task.
        candidates: the configs that the search proposed.
        outcomes: how they fared, earlier runs' trials included.
        rejected: reasons by digest, for configs that failed in the finals.
        ratios: the times of the finals' contestants over the fastest's; empty before.
        measured, resumed: how many trials this run measured, and how many it took from earlier runs.
        stopwatch: the wall time since a worker took the job on.
        draft_s: the seconds it took to make the job, before that.
    """

    def __init__(self, task: SearchTask, strategy: Strategy, *, in_finals: Sequence[Config] = ()) -> None:
        """Begin a search; nothing is proposed yet. `in_finals` play the finals however fast their trials were."""
        self.problem, self.device, self.strategy = task.problem, task.device, strategy
        self.specs, self.default = task.specs, task.default
        self._versions = {name: version_of(spec) for name, spec in self.specs.items()}
        self._held = len({task.default, *task.configs})
        self._search = RefinedSearch(strategy.start(task), task.refine, task.trials, refinable=task.refinable)
        self.candidates: list[Config] = []
        self.outcomes: dict[Config, Outcome] = {}
        self.rejected: dict[str, str] = {}
        self.ratios: dict[Config, float] = {}
        self._in_finals = in_finals
        self.measured = self.resumed = 0
        self._known: Mapping[Config, Outcome] = {}
        self._stopped = ""
        self.stopwatch = Stopwatch()
        self.draft_s = 0.0
        self._todo: deque[Config] = deque()
        self._in_flight = 0
        self._keys: dict[Config, str] = {}
        self._urgencies: dict[Config, int] = {}
        self._programs: dict[tuple[str, tuple[object, ...]], Config] = {}
        self._same_program: dict[Config, Config] = {}  # configs not measured, by the one that stands for them

    @property
    def kernels(self) -> list[KernelVersion]:
        """The kernels whose configs may be candidates."""
        return list(self._versions.values())

    def version(self, config: Config) -> KernelVersion:
        """Return the version of a config's kernel, as trials record it."""
        return self._versions[config.kernel]

    @property
    def owes_finals(self) -> bool:
        """Whether a config that plays the finals in any case was never tried."""
        return not all(config in self._known for config in self._in_finals)

    @property
    def searching(self) -> bool:
        """Whether candidates that were proposed are left to measure."""
        return bool(self._todo)

    @property
    def considered(self) -> int:
        """How many configs the search spaces hold, and with the default and refinements at least those it proposed."""
        return max(self._held, len(self.candidates))

    @property
    def most(self) -> int:
        """The most configs that the search will propose."""
        return max(self._search.most, len(self.candidates))

    @property
    def binaries(self) -> int:
        """How many binaries were requested for this problem."""
        return len(set(self._keys.values()))

    @property
    def stopped(self) -> str:
        """Why the search ended, in words; "" while it goes on."""
        return self._stopped or self._search.stopped

    @property
    def best_us(self) -> float | None:
        """The fastest trial's median so far, None without one."""
        return min(times_of(self.outcomes).values(), default=None)

    @property
    def times_us(self) -> dict[Config, float]:
        """The median of every config whose trial is COMPLETE and that the finals did not reject, earlier runs' too."""
        times = times_of({**self._known, **self.outcomes})
        return {config: time_us for config, time_us in times.items() if config.digest not in self.rejected}

    @property
    def failed(self) -> frozenset[Config]:
        """The configs that failed their trial, those of earlier runs included, or the finals' check."""
        tried = {**self._known, **self.outcomes}
        failed = failures_of(tried) | {config for config in tried if config.digest in self.rejected}
        return failed | {config for config, first in self._same_program.items() if first in failed}

    @property
    def states(self) -> Counter[State]:
        """How many candidates ended in each state, earlier runs' trials included."""
        return Counter(outcome.state for outcome in self.outcomes.values())

    @property
    def failure_summary(self) -> str:
        """The most frequent failure as the end of a message (": 6 of 8 RUNTIME_ERROR, ..."), "" without failures."""
        failed = [outcome for outcome in self.outcomes.values() if outcome.state is not State.COMPLETE]
        if not failed:
            return ""
        ((state, count),) = Counter(outcome.state for outcome in failed).most_common(1)
        message = next(outcome.message for outcome in failed if outcome.state is state)
        known = "" if self.measured else " (all tried by earlier runs: --fresh tries them again)"
        return f": {count} of {len(self.outcomes)} {state}, for instance {message[:_MESSAGE_CHARACTERS]}{known}"

    def resume(self, settled: Mapping[Config, Outcome]) -> None:
        """Begin the search; a proposed config that an earlier run measured keeps that outcome.

        One that it left out because another has its program is decided anew where it must play the finals.
        """
        must_play = {self.default, *self._in_finals}
        self._known = {
            config: outcome
            for config, outcome in settled.items()
            if outcome.state is not State.INVALID or config not in must_play
        }
        self._advance()

    def request(self, pool: CompilePool, urgency: Urgency = Urgency.NOW) -> None:
        """Request the binaries of all that is left; where compilers would be idle, also those that may come next."""
        for config in self._todo:
            self._request(config, pool, urgency)
        for config in self._search.reserve():
            if pool.waiting >= pool.workers:
                break
            self._request(config, pool, Urgency.SPARE)

    def _request(self, config: Config, pool: CompilePool, urgency: Urgency) -> None:
        if not self.specs[config.kernel].compiles_ahead:
            return  # its launch compiles it
        if urgency < self._urgencies.get(config, len(Urgency)):
            self._urgencies[config] = urgency
            if (key := self.key(config)) is not None:
                pool.hasten(key, urgency)
            else:
                self._keys[config] = pool.request(self.specs[config.kernel], self.problem, config, urgency)

    def _advance(self) -> None:
        """Have the search propose more once it knows how all its earlier proposals fared."""
        while not self._todo and not self._in_flight and not self._stopped:
            wave = self._search.propose({**self._known, **self.outcomes})
            if not wave:
                self._stopped = self._search.stopped
            for config in wave:
                self.candidates.append(config)
                if config in self._known:
                    self.outcomes[config] = self._known[config]
                    self.resumed += 1
                else:
                    self._todo.append(config)

    def take(
        self, limit: int, pool: CompilePool | None, urgency: Urgency = Urgency.NOW
    ) -> tuple[list[Config], list[tuple[Config, Outcome]]]:
        """Return at most `limit` configs to measure now, and the outcomes of configs that need no measurement."""
        self._advance()
        if pool is not None:
            self.request(pool, urgency)
        batch: list[Config] = []
        decided: list[tuple[Config, Outcome]] = []
        waiting: list[Config] = []
        while self._todo and len(batch) < limit:
            config = self._todo.popleft()
            key = self.key(config) if pool else None
            result = pool.result(key) if pool and key else None
            if key and result is None:
                waiting.append(config)
            elif result is not None and (outcome := self._without_measuring(config, result)) is not None:
                decided.append((config, outcome))
            else:
                batch.append(config)
        self._todo.extendleft(reversed(waiting))
        self._in_flight += len(batch) + len(decided)
        return batch, decided

    def key(self, config: Config) -> str | None:
        """Return the key of a requested binary in the pool, None for a config that its launch compiles."""
        return self._keys.get(config)

    def put_back(self, configs: Sequence[Config]) -> None:
        """Return configs to the queue that were taken and not measured."""
        self._todo.extendleft(reversed(configs))
        self._in_flight -= len(configs)

    def finish(self, config: Config, outcome: Outcome) -> None:
        """Record a config's outcome."""
        self.outcomes[config] = outcome
        self.measured += 1
        self._in_flight -= 1

    def abandon(self) -> None:
        """Leave the remaining candidates untried, except the default config, because the time is up."""
        self._todo = deque(config for config in self._todo if config == self.default)
        self._stopped = SPENT

    def finalists(self) -> list[Config]:
        """Return who plays the finals: the fastest trials within the strategy's margin, and the default config.

        Only configs whose trial is COMPLETE and that no earlier finals rejected take part.
        """
        ranked = [config for config in by_time(self.outcomes) if config.digest not in self.rejected]
        if not ranked:
            return []
        times = times_of(self.outcomes)
        limit_us = self.strategy.margin * times[ranked[0]]
        near = [config for config in ranked if times[config] <= limit_us][: self.strategy.finalists]
        wanted = map(self._contestant, (*self._in_finals, self.default))
        near += [config for config in wanted if config in ranked]
        return list(dict.fromkeys(near))

    def _contestant(self, config: Config) -> Config:
        """Return what plays the finals for a config: itself, or the config measured whose program it has."""
        return self._same_program.get(config, config)

    def verdict(self, times: Mapping[str, Sequence[float]]) -> Verdict | None:
        """Return the winner of the finals, None when no contestant but the vendor's library finished.

        The contestants are named by their configs' digests, and "vendor".

        Raises:
            KernelError: `simplicity` of a kernel failed.
        """
        ours = {name: figures for name, figures in times.items() if name != VENDOR}
        if not ours:
            return None
        known = {config.digest: config for config in self.outcomes}
        table = finals.compare_to_fastest(ours)
        self.ratios = {known[digest]: paired.ratio for digest, paired in table.items()}
        stood_for = {config: first for config, first in self._same_program.items() if first in self.ratios}
        self.ratios.update((config, self.ratios[first]) for config, first in stood_for.items())
        tied = self._simplest_first([known[digest] for digest in finals.ties(table)])
        winner = next(config for config in tied if self.ratios[config] <= 1 + finals.CLOSE)
        median_us, default = table[winner.digest].median_us, self._contestant(self.default)

        def paired_us(name: str) -> float | None:
            return median_us * finals.ratio(times[name], times[winner.digest]) if name in times else None

        return Verdict(
            winner,
            median_us,
            default_us=paired_us(default.digest),
            vendor_us=paired_us(VENDOR),
            ties=tuple(tied),
        )

    def _simplest_first(self, configs: Iterable[Config]) -> list[Config]:
        # The default comes before even simpler configs: what only ties with it is not worth a row in a table.
        default = self._contestant(self.default)
        keys = {
            config: (config != default, registry.ask(self.specs[config.kernel], "simplicity", config), config)
            for config in configs
        }
        try:
            return sorted(keys, key=keys.__getitem__)
        except TypeError as e:
            found = " and ".join(sorted({f"{config.kernel}: {key[1]!r:.60}" for config, key in keys.items()})[:2])
            raise KernelError(f"simplicity returns what cannot be compared, {found}: have it return numbers") from e

    def _without_measuring(self, config: Config, result: CompileResult) -> Outcome | None:
        """Return the outcome of a config whose compile already decides it, None when it has to be measured."""
        if isinstance(result, Failed):
            return Outcome(result.state, result.message)
        shared = result.resources.shared_bytes or 0
        if shared > self.device.shared_bytes:
            message = f"needs {shared} bytes of shared memory, a block has {self.device.shared_bytes}"
            return Outcome(State.OUT_OF_RESOURCES, message, resources=result.resources)
        runtime = tuple(config.get(name) for name in self.specs[config.kernel].runtime_parameters)
        first = self._programs.setdefault((result.program, (config.kernel, *runtime)), config)
        if first != config:
            self._same_program[config] = first
            return Outcome(State.INVALID, f"same program as {first}", resources=result.resources)
        return None


@functools.cache
def version_of(spec: KernelSpec) -> KernelVersion:
    """Return a kernel's version, as trials record it; cached, because hashing a source reads and tokenizes files."""
    return KernelVersion(spec.op, spec.name, spec.version, registry.ask(spec, "source_hash"))
