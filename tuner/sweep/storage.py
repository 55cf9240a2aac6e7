"""What a sweep needs of a store: `tuner.store.store.Store`, or on a node of a fleet its driver's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Protocol

from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import Family
from tuner.store.claims import Holder
from tuner.store.records import DecidedFamily, KernelVersion, Outcome, Trial, Verdict, Winner
from tuner.store.runs import Run


class StoreReader(Protocol):
    """Reads what earlier runs left; each method is as `tuner.store.store.Store` has it."""

    def settled(
        self,
        device: Device,
        environment: Environment,
        problem: Problem,
        kernels: Iterable[KernelVersion],
        counted: Set[int] | None = None,
        /,
    ) -> dict[Config, Outcome]:
        """The newest outcome of each config that was tried, of any run or of those counted."""

    def newest_trial_at(self, device: Device, environment: Environment, problem: Problem, /) -> str | None:
        """When the newest trial of a problem was recorded."""

    def winner(self, device: Device, environment: Environment, problem: Problem, /) -> Winner | None:
        """The current winner of a problem."""

    def winners(self, *, device_slug: str) -> list[Winner]:
        """The current winners of a device."""

    def runs_since(self, name: str, /) -> frozenset[int]:
        """The ids of a run and of those that began later."""

    def families(self, *, device_slug: str) -> list[DecidedFamily]:
        """The families of a device."""


class SweepStore(StoreReader, Protocol):
    """What a sweep reads and writes."""

    @property
    def is_away(self) -> bool:
        """Whether a write would wait for a server."""

    def record(self, run: Run, trials: Sequence[Trial], /, *, again: bool = False) -> None:
        """Keep all of some trials, or none; with `again` some of them may be there."""

    def decide(self, run: Run, problem: Problem, kernel: KernelVersion, verdict: Verdict, /) -> None:
        """Make a verdict the current winner."""

    def record_family(self, run: Run, family: Family, /) -> None:
        """Keep which range of Ms each winner of a ladder serves."""

    def heartbeat(self, run: Run, /) -> None:
        """Record that a run lives."""

    def claim(self, run: Run, problem: Problem, /, *, begin: bool = False) -> bool:
        """Have a problem to measure, unless another living run has it."""

    def begin_claimed(self, run: Run, problem: Problem, /) -> bool:
        """Begin a problem that a run has claimed."""

    def release(self, run: Run, problems: Sequence[Problem], /) -> None:
        """Give back problems that a run claimed."""

    def claimed_by_others(self, run: Run, problems: Iterable[Problem], /) -> Mapping[Problem, Holder]:
        """Who has which of these problems."""
