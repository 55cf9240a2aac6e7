"""The store: what a sweep writes to the database, and what everyone reads from it."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from tuner.errors import StoreError
from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import Family
from tuner.store import claims, families, models, rows, runs, schema, spool, winners
from tuner.store.engine import (
    ANOTHER,
    BUSY_TIMEOUT_S,
    Database,
    UnavailableError,
    faults,
    file_id,
    locate,
    open_engine,
    settle_journal,
    writing,
)
from tuner.store.listing import Listings, TrialFilter
from tuner.store.outage import OutageBuffer
from tuner.store.records import DecidedFamily, KernelVersion, Outcome, Trial, Verdict, Winner
from tuner.store.row_ids import RowIds
from tuner.store.runs import Run, RunStatus
from tuner.store.trials import newest_at, record, record_missing, settled
from tuner.store.writer_lock import sole_writer

__all__ = ["Run", "RunStatus", "Store", "TrialFilter"]
P = ParamSpec("P")
T = TypeVar("T")


def survives_outage(method: Callable[Concatenate[Store, P], T]) -> Callable[Concatenate[Store, P], T]:
    """Decorate a method of `Store`: once `survive_outages` was called it waits while the server is away."""

    @wraps(method)
    def wrapper(self: Store, /, *args: P.args, **options: P.kwargs) -> T:
        operation = partial(method, self, *args, **options)
        return operation() if self._outage is None else self._outage.wait(operation)

    return wrapper


class Store(Listings, AbstractContextManager["Store"]):
    """An open database of trials and winners; a context manager. `Store.open` makes one.

    Every method raises StoreError, one line, when the database cannot be read or written; each write is one
    transaction, so that nothing is half written.
    """

    def __init__(self, engine: Engine, database: Database) -> None:
        """Use an engine whose database is at the head; `Store.open` makes sure of that."""
        super().__init__(engine, database)
        self._file = None if database.path is None else file_id(database.path)
        self._log: tuple[int, int] | None = None
        self._ids = RowIds()
        self._outage: OutageBuffer | None = None
        self._alone = False
        self._joined: Connection | None = None
        self._again = False

    @classmethod
    def open(
        cls,
        location: str | Path | None = None,
        *,
        read_only: bool = False,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        another: str = ANOTHER,
    ) -> Store:
        """Open a database; a missing or empty one is made and brought to the newest schema.

        Args:
            location: a path or a URL; None means `$TUNER_DB`, else the user data folder.
            read_only: never write, not even the schema.
            busy_timeout_s: how long to wait for another process's lock on a SQLite file, seconds.
            another: how a message says to name another one, where no `--db` named this.

        Raises:
            SchemaError: its schema is behind (the message holds the command), ahead, or somebody else's.
            StoreError: it cannot be opened; it is as it was.
            UsageError: its name is empty.
        """
        database = locate(location, another=another)
        with faults(database):
            engine = open_engine(database, read_only=read_only, timeout_s=busy_timeout_s)
            try:
                schema.prepare(engine, database, read_only=read_only)
                if database.path is not None and not read_only:
                    settle_journal(engine, database.path)
                spool.replay(engine, database)
            except BaseException:
                engine.dispose()
                raise
        return cls(engine, database)

    @property
    def location(self) -> str:
        """Where the database is, as commands take it; a password is masked."""
        return self._database.label

    def close(self) -> None:
        """Close every connection."""
        self._end_outage_buffer()
        with faults(self._database):
            self._engine.dispose()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def sole_writer(self) -> Iterator[None]:
        """Keep other sweeps out of a SQLite file while the block runs; a server's database is shared."""
        if self._database.path is None:
            yield
            return
        with ExitStack() as held:
            with faults(self._database):
                self._alone = held.enter_context(sole_writer(self._database.path, self.location))
            try:
                yield
            finally:
                self._alone = False

    def begin_run(self, device: Device, environment: Environment, *, argv: Sequence[str], host: str) -> Run:
        """Start a run under the current protocol.

        A run that was killed still says RUNNING: once it is known to be dead, it becomes INTERRUPTED.
        """
        with self._writing() as connection:
            runs.interrupt_dead(connection, alone=self._alone)
            self._alone = False  # from here on this machine's runs may be our own
            return runs.begin(connection, self._ids, device, environment, argv=argv, host=host)

    @survives_outage
    def runs_since(self, name: str) -> frozenset[int]:
        """Return the ids of a run and of those that began later.

        Args:
            name: the run's uuid, or as much of it as no other run has.

        Raises:
            StoreError: there is no such run, or more than one.
        """
        with self._reading() as connection:
            return runs.since(connection, name)

    @property
    def is_shared(self) -> bool:
        """Whether several runs may write at a time, as on a server; a SQLite file has one sweep."""
        return self._database.url is not None

    @property
    def is_away(self) -> bool:
        """Whether the server did not answer when it was last asked; always False without `survive_outages`."""
        return self._outage is not None and self._outage.is_away

    def survive_outages(self, run: Run, stop: threading.Event | None = None) -> None:
        """Let a run go on while its server is away, until the run ends; a SQLite file is never away.

        From now on `record` keeps trials in a local file while the server is away; every other call waits for it.

        Args:
            run: the run.
            stop: once it is set, a call that waits raises KeyboardInterrupt.
        """
        if self.is_shared:
            kept = spool.Spool(run, self._database)
            again = partial(self._record_missing, run)
            self._outage = OutageBuffer(kept, self.location, again, stop or threading.Event())

    def heartbeat(self, run: Run) -> None:
        """Record that a run lives; one that was taken for dead, on a suspended machine, is RUNNING again.

        Nothing is done while a server is known to be away.
        """
        if self.is_away:
            return
        with self._writing() as connection:
            runs.beat(connection, run)

    def end_run(self, run: Run, status: RunStatus) -> None:
        """Record how a run ended. One that is not DONE waits for no server: without it the run is left as dead."""
        ignored: tuple[type[StoreError], ...] = ()
        if self._outage is not None and status is not RunStatus.DONE:
            self._outage.given_up, ignored = True, (UnavailableError,)
        with suppress(*ignored):
            self._set_status(run, status)
        self._end_outage_buffer()

    @contextmanager
    def ending_if_raised(self, run: Run) -> Iterator[None]:
        """End a run as INTERRUPTED by Ctrl-C, or as FAILED, where the block raises."""
        try:
            yield
        except BaseException as e:
            # A store that cannot be written may be what raised.
            with suppress(StoreError):
                self.end_run(run, RunStatus.INTERRUPTED if isinstance(e, KeyboardInterrupt) else RunStatus.FAILED)
            raise

    @survives_outage
    def _set_status(self, run: Run, status: RunStatus) -> None:
        with self._writing() as connection:
            claims.release(connection, self._ids, run)
            runs.end(connection, run, status)

    def _end_outage_buffer(self) -> None:
        if self._outage is not None:
            self._outage.close()
        self._outage = None

    def record(self, run: Run, trials: Iterable[Trial], *, again: bool = False) -> None:
        """Store trials, all or none; see `survive_outages` for a server that is away.

        Args:
            run: the run that measured them.
            trials: the trials; times are microseconds.
            again: nobody knows whether some of them were recorded before: what is there stays.

        Raises:
            StoreError: also when one of them was recorded by this run before, without `again`.
        """
        batch = list(trials)
        if not batch:
            return
        if self._outage is not None:
            self._outage.keep(batch)
            return
        self.record_rows(run, [rows.trial_values(trial) for trial in batch], again=again)

    def record_rows(self, run: Run, trials: Sequence[rows.TrialValues], *, again: bool = False) -> None:
        """Keep trials as `record` does, from the rows that a node of a fleet made of them."""
        with self._writing() as connection:
            record(connection, self._ids, run.id, trials, again=again or self._again)

    def _record_missing(self, run: Run, trials: Sequence[spool.Timed]) -> None:
        with self._writing() as connection:
            record_missing(connection, self._ids, run.id, trials)

    @survives_outage
    def settled(
        self,
        device: Device,
        environment: Environment,
        problem: Problem,
        kernels: Iterable[KernelVersion],
        counted: Set[int] | None = None,
    ) -> dict[Config, Outcome]:
        """Return the newest outcome of each config, if that is settled.

        One that crashed or hung is settled once two trials in a row did, one for which memory ran out never.

        Args:
            device, environment, problem: what the trials must have been measured on, under the current protocol.
            kernels: op, name and version that the trials must have been measured with; a source hash does not count.
            counted: the ids of the runs whose trials count; None for all.
        """
        with self._reading() as connection:
            return settled(connection, self._ids, (device, environment, problem), kernels, counted)

    @survives_outage
    def newest_trial_at(self, device: Device, environment: Environment, problem: Problem) -> str | None:
        """Return when a problem's newest trial was recorded, UTC as in `Winner.decided_at`; None without trials."""
        with self._reading() as connection:
            return newest_at(connection, self._ids, (device, environment, problem))

    @survives_outage
    def decide(self, run: Run, problem: Problem, kernel: KernelVersion, verdict: Verdict) -> None:
        """Make a verdict the current winner of (device, environment, problem); the one before is superseded.

        Raises:
            StoreError: also when the config has no COMPLETE trial on this device, environment and protocol.
        """
        with self._writing() as connection:
            winners.decide(connection, self._ids, run, problem, version=kernel, verdict=verdict)

    @survives_outage
    def winner(self, device: Device, environment: Environment, problem: Problem) -> Winner | None:
        """Return the current winner of a problem on a device under an environment's versions; None without one."""
        winner = models.winner
        with self._reading() as connection:
            key = [self._ids.find(connection, entity) for entity in (device, environment, problem)]
            columns = (winner.c.device_id, winner.c.environment_id, winner.c.problem_id)
            if None in key:
                return None
            found = rows.current_winners(connection, *(c == value for c, value in zip(columns, key, strict=True)))
        return found[0] if found else None

    @survives_outage
    def winners(self, *, device_slug: str | None = None) -> list[Winner]:
        """Return the current winners of a device, or of all, sorted by device, problem and environment."""
        conditions = [] if device_slug is None else [models.device.c.slug == device_slug]
        with self._reading() as connection:
            return rows.current_winners(connection, *conditions)

    @survives_outage
    def claim(self, run: Run, problem: Problem, *, begin: bool = False) -> bool:
        """Claim a problem for a run, unless another living run has it; return whether this run has it now.

        Runs that share a server's database claim problems for their device, environment and protocol. A claim holds
        until `release`, or until its run is dead. A SQLite file has one sweep at a time, which needs no claims.

        Args:
            run: the run that wants it.
            problem: the problem.
            begin: take it as begun; another run that has it and has not begun it loses it.
        """
        if not self.is_shared:
            return True
        with self._writing() as connection:
            return claims.claim(connection, self._ids, run, problem, begin=begin)

    @survives_outage
    def begin_claimed(self, run: Run, problem: Problem) -> bool:
        """Begin a problem that a run has claimed; return False if another run has taken it over meanwhile."""
        if not self.is_shared:
            return True
        with self._writing() as connection:
            return claims.begin(connection, self._ids, run, problem)

    def release(self, run: Run, problems: Sequence[Problem]) -> None:
        """Release problems that a run has claimed; the end of a run releases all that it still has."""
        if self.is_shared and problems:
            self._release(run, problems)

    @survives_outage
    def _release(self, run: Run, problems: Sequence[Problem]) -> None:
        with self._writing() as connection:
            claims.release(connection, self._ids, run, problems)

    @survives_outage
    def claimed_by_others(self, run: Run, problems: Iterable[Problem]) -> dict[Problem, claims.Holder]:
        """Return which of these problems other living runs have, and who they are."""
        with self._reading() as connection:
            return claims.others(connection, self._ids, run, problems)

    @survives_outage
    def record_family(self, run: Run, family: Family) -> None:
        """Store which range of Ms each winner of a ladder serves.

        Args:
            run: the run that tuned the ladder; it records a family once.
            family: its ranges, each of which names an M that has a winner.
        """
        with self._writing() as connection:
            unsure = self._again or self._outage is not None
            if not (unsure and families.is_recorded(connection, self._ids, run, family)):
                families.record(connection, self._ids, run, family)

    @survives_outage
    def families(self, *, device_slug: str | None = None) -> list[DecidedFamily]:
        """Return the families of a device, or of all; the one decided last comes first."""
        conditions = [] if device_slug is None else [models.device.c.slug == device_slug]
        with self._reading() as connection:
            return families.decided(connection, *conditions)

    @contextmanager
    def in_one_transaction(self, *, again: bool = False) -> Iterator[None]:
        """Write everything that the block writes, or nothing; the block reads the state before it.

        Args:
            again: the same was written to a server before, and nobody knows what became of that: what is there stays.
        """
        with self._writing() as connection:
            self._joined, self._again = connection, again
            try:
                yield
            finally:
                self._joined, self._again = None, False

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        if self._joined is not None:
            yield self._joined
            return
        try:
            self._check_file()
            with faults(self._database), writing(self._engine).begin() as connection:
                yield connection
            self._check_file()
        except BaseException:
            self._ids.forget()
            raise

    def _check_file(self) -> None:
        """Raise where the file is not the one that was opened: SQLite would write on into one that nobody finds."""
        if self._database.path is None:
            return
        path = Path(os.path.realpath(self._database.path))  # SQLite's other files lie beside the file itself
        log, index = (path.with_name(path.name + ending) for ending in ("-wal", "-shm"))
        if file_id(path) == self._file:
            self._log = file_id(log)
            return
        # Nothing is removed here: a file that was only moved needs its log, and whoever opened another may use it.
        copied = "put a copy back"
        if self._log is not None and file_id(path) is None and file_id(log) == self._log:
            remove = shlex.join(["rm", str(log), str(index)])
            copied = f"move it back, or type `{remove}`, whose rows SQLite would mix into a copy, and put a copy back,"
        raise StoreError(
            f"{self.location} was deleted or replaced by another file while this wrote to it, and what it held is lost"
            f" there: {copied} or name another with --db, then type the same command again"
        )
