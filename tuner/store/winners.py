"""How a verdict becomes the current winner of a problem."""

from __future__ import annotations

import json

from sqlalchemy import Connection, bindparam, select, update

from tuner.errors import StoreError
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.models import config, kernel, trial, winner
from tuner.store.models import run as run_table
from tuner.store.records import KernelVersion, State, Verdict, now
from tuner.store.row_ids import RowIds, insert_row
from tuner.store.rows import TRIAL_JOINS, joined
from tuner.store.runs import Run

_KEY = ("device_id", "environment_id", "problem_id")
# Made once: a fleet's ledger decides hundreds of problems a second, and making the statements was most of the work.
_CURRENT = select(winner).where(*(winner.c[name] == bindparam(name) for name in _KEY), winner.c.superseded_by.is_(None))
_EVIDENCE = (
    select(trial.c.trial_id, trial.c.config_id)
    .select_from(joined(trial, TRIAL_JOINS))
    .where(
        trial.c.problem_id == bindparam("problem_id"),
        trial.c.state == State.COMPLETE.value,
        *(run_table.c[name] == bindparam(name) for name in ("device_id", "environment_id", "protocol")),
        config.c.hash == bindparam("hash"),
        *(kernel.c[name] == bindparam(name) for name in ("op", "name", "version")),
    )
    .order_by(trial.c.measured_at.desc(), trial.c.trial_id.desc())
)


def decide(
    connection: Connection, ids: RowIds, run: Run, problem: Problem, *, version: KernelVersion, verdict: Verdict
) -> None:
    """Insert a winner and supersede the one before; see `Store.decide`."""
    key = {
        "device_id": ids.make(connection, run.device),
        "environment_id": ids.make(connection, run.environment),
        "problem_id": ids.make(connection, problem),
    }
    trial_id, config_id = _evidence(connection, run, key, version, verdict.config)
    found = connection.execute(_CURRENT, key).first()
    if found is not None and (found.run_id, found.config_id, found.median_us) == (run.id, config_id, verdict.median_us):
        return  # the answer to this commit was lost, not the commit
    before = None if found is None else found.winner_id
    ties = [{"kernel": tie.kernel, "parameters": dict(tie.pairs)} for tie in verdict.ties]
    row = {
        **key,
        "config_id": config_id,
        "trial_id": trial_id,
        "run_id": run.id,
        "median_us": verdict.median_us,
        "default_us": verdict.default_us,
        "vendor_us": verdict.vendor_us,
        "ties": json.dumps(ties, sort_keys=True),
        "decided_at": now(),
        # Two current winners are never allowed, not even for a moment: the new one enters superseded, then both change.
        "superseded_by": before,
    }
    winner_id = insert_row(connection, winner, row)
    if before is not None:
        connection.execute(update(winner).where(winner.c.winner_id == before).values(superseded_by=winner_id))
        connection.execute(update(winner).where(winner.c.winner_id == winner_id).values(superseded_by=None))


def _evidence(
    connection: Connection, run: Run, key: dict[str, int], version: KernelVersion, won: Config
) -> tuple[int, int]:
    """The newest COMPLETE trial of a winning config, in whichever run: (trial_id, config_id)."""
    wanted = {"protocol": run.protocol, "hash": won.digest}
    wanted |= {"op": version.op, "name": version.name, "version": version.version}
    found = connection.execute(_EVIDENCE, key | wanted).first()
    if found is None:
        raise StoreError(
            f"{won} cannot win: no COMPLETE trial of it was recorded with {version.name} {version.version}"
        )
    return found.trial_id, found.config_id
