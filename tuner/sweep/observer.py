"""Who is told what happens in a sweep, while it happens."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import Family
from tuner.store.records import Outcome
from tuner.sweep.job import Job
from tuner.sweep.report import ProblemReport


class Observer:
    """Callbacks of a sweep, which do nothing; a subclass overrides those that it needs."""

    def started(self, device: Device, environment: Environment, problems: Sequence[Problem]) -> None:
        """The workers have opened their devices."""

    def problem_started(self, job: Job, gpu: int | None) -> None:
        """A GPU begins a problem."""

    def trial_ended(self, job: Job, config: Config, outcome: Outcome) -> None:
        """A trial ended."""

    def problem_ended(self, report: ProblemReport) -> None:
        """A problem was decided or given up."""

    def family_decided(self, family: Family) -> None:
        """A ladder's every step ended."""
