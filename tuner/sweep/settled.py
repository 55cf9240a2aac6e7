"""Whether a problem's winner stands, so that a sweep has nothing left to do for it."""

from __future__ import annotations

from tuner.hardware.device import Device, Environment
from tuner.store.records import PROTOCOL, Winner
from tuner.store.store import Store
from tuner.sweep.job import Job


def decided(store: Store, device: Device, environment: Environment, job: Job) -> Winner | None:
    """The winner after which nothing is left to do for a job, if there is one."""
    if job.searching and job.strategy.revisits:
        return None
    winner = standing_winner(store, device, environment, job)
    if winner is None:
        return None
    # Trials after the decision are of a run that did not get to its finals.
    newest = store.newest_trial_at(device, environment, job.problem)
    return winner if newest is None or newest <= winner.decided_at else None


def standing_winner(store: Store, device: Device, environment: Environment, job: Job) -> Winner | None:
    """A problem's winner, if it was decided by today's protocol and kernels."""
    winner = store.winner(device, environment, job.problem)
    if winner is None or winner.protocol != PROTOCOL or winner.config.kernel not in job.specs:
        return None
    return winner if winner.kernel_version == job.specs[winner.config.kernel].version else None
