"""What earlier runs left for a job: trials to resume from, and a winner that still holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tuner.errors import KernelError
from tuner.hardware.device import Device, Environment
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.lookup.row import BAD_VALUE
from tuner.problem import Problem
from tuner.store.records import PROTOCOL, Outcome, Winner
from tuner.sweep.counted import ALL, Counted
from tuner.sweep.job import Job, version_of
from tuner.sweep.search import Strategy
from tuner.sweep.storage import StoreReader


class History:
    """The trials and winners that a store holds for one device and environment."""

    def __init__(
        self,
        store: StoreReader | None,
        device: Device,
        environment: Environment,
        counted: Counted = ALL,
    ) -> None:
        """Read nothing yet. What the runs `counted` left counts, the rest is measured again."""
        self._store, self._counted = store, counted
        self._device, self._environment = device, environment
        self._ended: set[Problem] = set()

    def note_ended(self, problem: Problem) -> None:
        """Note that this run is done with a problem."""
        self._ended.add(problem)

    def has_ended(self, problem: Problem) -> bool:
        """Whether this run is done with a problem. Ladders may have a problem in common, but a run measures it once.

        Only what plays it again with configs that its finals are to have is measured then.
        """
        return problem in self._ended

    def resume(self, job: Job) -> None:
        """Start a job's search with the trials of earlier runs."""
        known = {}
        if self._store is not None:
            known = self._store.settled(self._device, self._environment, job.problem, job.kernels, self._counted.ids)
        job.resume(known)

    def winner_to_keep(self, job: Job) -> Winner | None:
        """Return the stored winner if it leaves nothing to do for a job; None where the job has to run."""
        if job.searching and job.strategy.revisits:
            return None
        winner = self.stored_winner(job)
        return winner if winner is not None and self._is_newest(winner) else None

    def winner_without_job(self, problem: Problem, strategy: Strategy) -> Winner | None:
        """Return the stored winner if it leaves nothing to do for a problem; None where only a job can tell.

        Making a job takes long, since it lists the problem's search space. Where no winner is stored, this imports no
        kernel.
        """
        if self._store is None or strategy.revisits or self.has_ended(problem):
            return None
        winner = self._store.winner(self._device, self._environment, problem)
        try:
            holds = winner is not None and self.counts(winner) and self._holds(winner, _serving(problem, self._device))
        except (KernelError, SystemExit):  # of a user's rules
            return None
        return winner if winner is not None and holds and self._is_newest(winner) else None

    def settled(self, problem: Problem) -> dict[Config, Outcome]:
        """Return what is known of every config of a problem; see `Store.settled`."""
        if self._store is None:
            return {}
        versions = map(version_of, _serving(problem, self._device).values())
        return self._store.settled(self._device, self._environment, problem, versions, self._counted.ids)

    def has_tried(self, problem: Problem, configs: Collection[Config]) -> bool:
        """Whether the outcomes of some configs are known; True where a kernel's code fails, as its job will tell."""
        try:
            return self.settled(problem).keys() >= {*configs}
        except (KernelError, SystemExit):
            return True

    def stored_winner(self, job: Job) -> Winner | None:
        """Return the stored winner of a job's problem if it holds: decided by today's protocol and kernel versions."""
        if self._store is None:
            return None
        winner = self._store.winner(self._device, self._environment, job.problem)
        holds = winner is not None and self.counts(winner) and self._holds(winner, job.specs)
        return winner if holds else None

    def _is_newest(self, winner: Winner) -> bool:
        """Whether no trial is newer than the decision; a newer one is of a run that was stopped before its finals."""
        assert self._store is not None
        newest = self._store.newest_trial_at(self._device, self._environment, winner.problem)
        return newest is None or newest <= winner.decided_at

    def counts(self, winner: Winner) -> bool:
        """Whether the run that decided on a winner counts."""
        return self._counted.has(winner.run_id)

    def _holds(self, winner: Winner, specs: Mapping[str, KernelSpec]) -> bool:
        """Whether a winner's config is still one of its kernel's."""
        spec = specs.get(winner.config.kernel)
        if spec is None or spec.version != winner.kernel_version or winner.protocol != PROTOCOL:
            return False
        try:
            # A kernel's list of configs may have changed since: a lookup refuses one that it no longer has.
            space: SearchSpace = registry.ask(spec, "space", winner.problem, self._device)
            return space.rejection(winner.config, fatal_only=True) is None
        except BAD_VALUE:  # of a row that somebody edited
            return False

    def undecided(self, problems: Collection[Problem]) -> list[Problem]:
        """Return the problems without a stored winner that holds; no job is needed to tell."""
        if self._store is None or not problems:
            return list(problems)
        stored = self._store.winners(device_slug=self._device.slug)
        asked = set(problems)
        here = (each for each in stored if each.problem in asked and each.environment == self._environment)
        ours = filter(self.counts, here)
        decided = {winner.problem for winner in ours if self._holds(winner, registry.of(winner.problem.op))}
        return [problem for problem in problems if problem not in decided]


def _serving(problem: Problem, device: Device) -> dict[str, KernelSpec]:
    return {spec.name: spec for spec in registry.serving(problem, device, strict=True)}
