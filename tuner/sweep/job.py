"""One problem of a sweep: what is left to try, what came out, who won. Knows no process and no device."""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.store.records import KernelVersion, Outcome, State, Verdict
from tuner.sweep import finals
from tuner.sweep.compile_pool import CompilePool, CompileResult, Failed, Urgency
from tuner.sweep.measure import VENDOR
from tuner.sweep.refine import Refined
from tuner.sweep.search import Strategy
from tuner.sweep.search_problem import Field
from tuner.sweep.stopwatch import Stopwatch

SPENT = "the time budget is spent"
_LONGEST = 200  # characters of a trial's message in one of a problem
_SPARE = 2
"""Binaries waiting for each compiler below which some are compiled that a search may never come to."""


class Job:
    """The search for one problem's winner.

    Attributes:
        watch: where the wall time goes, since a lane took it on.
        draft_s: what it took to make, before that.
    """

    def __init__(self, field: Field, strategy: Strategy) -> None:
        """Begin a search; nothing is proposed yet.

        Args:
            field: what may be tried.
            strategy: picks the configs.
        """
        self.problem, self.device, self.strategy = field.problem, field.device, strategy
        self.specs, self.default = field.specs, field.default
        self._versions = {name: _version(spec) for name, spec in self.specs.items()}
        self.considered = len(field.configs)
        self._search = Refined(strategy.start(field), field.refine, field.trials, able=field.refinable)
        self.candidates: list[Config] = []
        self.outcomes: dict[Config, Outcome] = {}
        self.rejected: dict[str, str] = {}
        self.measured = self.resumed = 0
        self._known: Mapping[Config, Outcome] = {}
        self._stopped = ""
        self.watch = Stopwatch()
        self.draft_s = 0.0
        self._todo: deque[Config] = deque()
        self._flying = 0
        self._keys: dict[Config, str] = {}
        self._asked: dict[Config, int] = {}
        self._programs: dict[tuple[str, tuple[object, ...]], Config] = {}

    @property
    def kernels(self) -> list[KernelVersion]:
        """The kernels whose configs are candidates."""
        return list(self._versions.values())

    def version(self, config: Config) -> KernelVersion:
        """The version of a config's kernel, as trials record it."""
        return self._versions[config.kernel]

    @property
    def searching(self) -> bool:
        """Whether candidates are left to measure, of those proposed so far."""
        return bool(self._todo)

    @property
    def most(self) -> int:
        """How many configs the search will propose at most."""
        return max(self._search.most, len(self.candidates))

    @property
    def binaries(self) -> int:
        """How many binaries were asked for on this problem's behalf."""
        return len(set(self._keys.values()))

    @property
    def stopped(self) -> str:
        """Why the search ended, in words; "" while it goes on."""
        return self._stopped or self._search.stopped

    @property
    def best_us(self) -> float | None:
        """Median of the fastest trial so far."""
        return min((o.median_us for o in self.outcomes.values() if o.median_us is not None), default=None)

    @property
    def states(self) -> Counter[State]:
        """How many candidates ended in which state, earlier runs' trials counted."""
        return Counter(outcome.state for outcome in self.outcomes.values())

    @property
    def trouble(self) -> str:
        """What most trials failed of, as the end of a message: ": 6 of 8 RUNTIME_ERROR, ..."; "" where none failed."""
        failed = [outcome for outcome in self.outcomes.values() if outcome.state is not State.COMPLETE]
        if not failed:
            return ""
        ((state, count),) = Counter(outcome.state for outcome in failed).most_common(1)
        message = next(outcome.message for outcome in failed if outcome.state is state)
        return f": {count} of {len(self.outcomes)} {state}, for instance {message[:_LONGEST]}"

    def resume(self, settled: Mapping[Config, Outcome]) -> None:
        """Begin the search; trials of earlier runs among what it proposes are taken over."""
        self._known = settled
        self._advance()

    def request(self, pool: CompilePool, urgency: Urgency = Urgency.NOW) -> None:
        """Ask for the binaries of everything that is left, and, if compilers are idle, of what may come next."""
        for config in self._todo:
            self._ask(config, pool, urgency)
        for config in self._search.reserve():
            if pool.waiting >= _SPARE * pool.workers:
                break
            self._ask(config, pool, Urgency.SPARE)

    def _ask(self, config: Config, pool: CompilePool, urgency: Urgency) -> None:
        if urgency < self._asked.get(config, len(Urgency)):
            self._asked[config] = urgency
            self._keys[config] = pool.request(self.specs[config.kernel], self.problem, config, urgency)

    def _advance(self) -> None:
        """Have the search propose more, once it knows how all that it proposed fared."""
        while not self._todo and not self._flying and not self._stopped:
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

    def take(self, limit: int, pool: CompilePool | None) -> tuple[list[Config], list[tuple[Config, Outcome]]]:
        """Configs to measure now, at most `limit`, and those whose compile already decided them.

        Args:
            limit: configs of one batch.
            pool: where the binaries come from, None under the interpreter.
        """
        self._advance()
        if pool is not None:
            self.request(pool)
        batch: list[Config] = []
        decided: list[tuple[Config, Outcome]] = []
        waiting: list[Config] = []
        while self._todo and len(batch) < limit:
            config = self._todo.popleft()
            result = pool.result(self._keys[config]) if pool else None
            if pool and result is None:
                waiting.append(config)
            elif result is not None and (outcome := self._without_measuring(config, result)) is not None:
                decided.append((config, outcome))
            else:
                batch.append(config)
        self._todo.extendleft(reversed(waiting))
        self._flying += len(batch) + len(decided)
        return batch, decided

    def key(self, config: Config) -> str:
        """Under which key the pool holds a requested config's binary."""
        return self._keys[config]

    def put_back(self, configs: Sequence[Config]) -> None:
        """Have configs measured after all, whose worker died before it came to them."""
        self._todo.extendleft(reversed(configs))
        self._flying -= len(configs)

    def finish(self, config: Config, outcome: Outcome) -> None:
        """Take note of a config's outcome."""
        self.outcomes[config] = outcome
        self.measured += 1
        self._flying -= 1

    def abandon(self) -> None:
        """Leave the rest of the candidates untried, but for the default config: the time is up."""
        self._todo = deque(config for config in self._todo if config == self.default)
        self._stopped = SPENT

    def finalists(self) -> list[Config]:
        """Who plays the finals: the fastest trials, as far as they are close, and the default config.

        Only configs whose trial is COMPLETE and that no earlier finals rejected.
        """
        complete = sorted(
            (outcome.median_us, config)
            for config, outcome in self.outcomes.items()
            if outcome.state is State.COMPLETE and outcome.median_us is not None and config.digest not in self.rejected
        )
        margin = self.strategy.margin
        near = [config for median_us, config in complete if median_us <= margin * complete[0][0]]
        near = near[: self.strategy.finalists]
        if self.default not in near and any(config == self.default for _, config in complete):
            near.append(self.default)
        return near

    def verdict(self, times: Mapping[str, Sequence[float]]) -> Verdict | None:
        """The winner of the finals, None when no contestant but the vendor's library finished.

        Args:
            times: by config digest, and "vendor"; microseconds a call, the i-th of all from one round.
        """
        known = {config.digest: config for config in self.outcomes}
        table = (
            finals.standings({name: times[name] for name in times if name != VENDOR}) if set(times) - {VENDOR} else {}
        )
        if not table:
            return None
        tied = sorted((known[digest] for digest in finals.ties(table)), key=self._simplest_first)
        winner = tied[0]
        median_us = table[winner.digest].median_us

        def paired_us(name: str) -> float | None:
            return median_us * finals.ratio(times[name], times[winner.digest]) if name in times else None

        return Verdict(
            winner,
            median_us,
            default_us=paired_us(self.default.digest),
            vendor_us=paired_us(VENDOR),
            ties=tuple(tied),
        )

    def _simplest_first(self, config: Config) -> tuple[object, ...]:
        # A config that does not beat the default by more than a tie is not worth a table's row of its own.
        return (config != self.default, self.specs[config.kernel].simplicity(config), config)

    def _without_measuring(self, config: Config, result: CompileResult) -> Outcome | None:
        if isinstance(result, Failed):
            return Outcome(result.state, result.message)
        shared = result.resources.shared_bytes or 0
        if shared > self.device.shared_bytes:
            message = f"needs {shared} bytes of shared memory, a block has {self.device.shared_bytes}"
            return Outcome(State.OUT_OF_RESOURCES, message, resources=result.resources)
        runtime = tuple(config.get(name) for name in self.specs[config.kernel].runtime_parameters)
        twin = self._programs.setdefault((result.program, (config.kernel, *runtime)), config)
        if twin != config:
            return Outcome(State.INVALID, f"same program as {twin}", resources=result.resources)
        return None


@functools.cache
def _version(spec: KernelSpec) -> KernelVersion:
    # Hashing a source reads and tokenizes files.
    return KernelVersion(spec.op, spec.name, spec.version, spec.source_hash())
