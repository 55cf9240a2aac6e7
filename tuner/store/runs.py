"""A run: one `tuner run` on one device."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import Enum
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, and_, func, insert, or_, select, update

from tuner.errors import StoreError
from tuner.hardware.device import Device, Environment
from tuner.location import without_password
from tuner.store import models
from tuner.store.records import PROTOCOL, as_text, now
from tuner.store.row_ids import RowIds, insert_row
from tuner.version import __version__

DEAD_AFTER_S = 60.0
"""A run without a sign of life for this long is taken for dead: a writer may wait half of it for a lock."""


ABSENCE_S = 600.0
"""How long a run waits for its server before it gives up."""


class RunStatus(str, Enum):
    """The state of a run."""

    RUNNING = "RUNNING"
    DONE = "DONE"
    INTERRUPTED = "INTERRUPTED"
    FAILED = "FAILED"

    def __str__(self) -> str:
        return self.value


NAME_LENGTH = 8
"""As much of a run's uuid as tells it from others."""


@dataclass(frozen=True, slots=True)
class Run:
    """One `tuner run` on one device, as the store knows it.

    Attributes:
        id: the row's key, good in this database only.
        uuid: the run's name in every database it is merged into.
        device, environment: where its trials are measured.
        protocol: the measuring protocol's number.
        tool_version: the version of triton-tuner.
    """

    id: int
    uuid: str
    device: Device
    environment: Environment
    protocol: int
    tool_version: str

    @property
    def name(self) -> str:
        """The beginning of its uuid, for people."""
        return self.uuid[:NAME_LENGTH]


def since(connection: Connection, name: str) -> frozenset[int]:
    """Return the ids of a run and of those that began later; see `Store.runs_since`."""
    run = models.run.c
    named = select(run.run_id, run.started_at).where(run.uuid.startswith(name.lower(), autoescape=True))
    found = connection.execute(named).all() if name else ()
    if len(found) != 1:
        what, those = (f"several runs begin with {name!r}", "them") if found else (f"there is no run {name!r}", "all")
        raise StoreError(f"{what}: `tuner show runs` lists {those}")
    ((number, began),) = found
    later = or_(run.started_at > began, and_(run.started_at == began, run.run_id >= number))
    return frozenset(connection.execute(select(run.run_id).where(later)).scalars())


def interrupt_dead(connection: Connection, *, alone: bool) -> None:
    """Make runs INTERRUPTED that say RUNNING and are dead: their last sign of life is too old, or none was kept.

    Args:
        connection: where a run is about to begin.
        alone: whether this process holds the database's lock, so that no other run of this machine lives.
    """
    run = models.run.c
    dead = ~heard(connection)
    if alone:
        dead = or_(dead, run.node == node())
    interrupted = update(models.run).where(run.status == RunStatus.RUNNING.value, dead)
    connection.execute(interrupted.values(status=RunStatus.INTERRUPTED.value))


def heard(connection: Connection) -> ColumnElement[bool]:
    """Whether a run gave a sign of life lately: of a run that says RUNNING, whether it lives.

    While its server was down nobody was heard, so that a run which outlasted that has time to be heard again.
    """
    beat, limit = models.run.c.heartbeat_at, timedelta(seconds=DEAD_AFTER_S)
    clock = _clock(connection)
    oldest = clock - limit
    if connection.dialect.name != "sqlite":
        started = connection.execute(select(func.pg_postmaster_start_time())).scalar_one().astimezone(timezone.utc)
        if started > oldest:
            oldest = started - limit - timedelta(seconds=ABSENCE_S)
    # A machine whose clock was wrong may have left a time that is still to come.
    return and_(beat.is_not(None), beat.between(as_text(oldest), as_text(clock + limit)))


def beat(connection: Connection, run: Run) -> None:
    """Record a sign of life; see `Store.heartbeat`."""
    alive = {"heartbeat_at": as_text(_clock(connection)), "status": RunStatus.RUNNING.value}
    connection.execute(update(models.run).where(models.run.c.run_id == run.id).values(alive))


def begin(
    connection: Connection, ids: RowIds, device: Device, environment: Environment, *, argv: Sequence[str], host: str
) -> Run:
    """Insert a run that is RUNNING; see `Store.begin_run`."""
    table = models.run
    device_id = ids.make(connection, device)
    _keep_name(connection, device_id, device.name)
    _keep_rates(connection, device_id, device)
    run, began = Run(0, str(uuid.uuid4()), device, environment, PROTOCOL, __version__), _clock(connection)
    row = {
        "uuid": run.uuid,
        "device_id": device_id,
        "environment_id": ids.make(connection, environment),
        "protocol": run.protocol,
        "tool_version": run.tool_version,
        "argv": json.dumps([*map(without_password, argv)]),
        "host": host,
        "started_at": as_text(began),
        "status": RunStatus.RUNNING.value,
        "heartbeat_at": as_text(began),
        "node": node(),
    }
    return dataclasses.replace(run, id=insert_row(connection, table, row))


def end(connection: Connection, run: Run, status: RunStatus) -> None:
    """Record how a run ended, and when."""
    ended = {"status": status.value, "ended_at": now()}
    connection.execute(update(models.run).where(models.run.c.run_id == run.id).values(ended))


def node() -> str | None:
    """What tells this machine, and this boot of it, from every other; containers share their host's.

    A host's name does not: cloned machines and containers have the same, or a new one at each start. None where the
    system has no such id.
    """
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return None


def _clock(connection: Connection) -> datetime:
    """The time by the server's clock, on which all who use it agree; by this machine's for a file."""
    if connection.dialect.name == "sqlite":
        return datetime.now(timezone.utc)
    time: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return time.astimezone(timezone.utc)


def _keep_rates(connection: Connection, device_id: int, device: Device) -> None:
    """Keep what the driver said of a device's clock and memory where the row, of an older version, lacks them."""
    table = models.device
    for name, rate in (("clock_mhz", device.clock_mhz), ("memory_gb_per_s", device.memory_gb_per_s)):
        unknown = (table.c.device_id == device_id, table.c[name].is_(None))
        if rate is not None:
            connection.execute(update(table).where(*unknown).values({name: rate}))


def _keep_name(connection: Connection, device_id: int, name: str) -> None:
    """Keep a driver's name of a device as an alias, unless it is the device's own or known."""
    device, alias = models.device, models.device_alias
    own = select(device.c.name).where(device.c.device_id == device_id, device.c.name == name)
    other = select(alias.c.name).where(alias.c.device_id == device_id, alias.c.name == name)
    if connection.execute(own.union_all(other)).first() is None:
        connection.execute(insert(alias), {"device_id": device_id, "name": name})
