"""The rows of one database brought into another.

Two rows are the same where their natural keys are: a slug, a hash, a run's uuid, all parts of a problem.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, RowMapping, Table, delete, func, insert, select, update

from tuner.errors import StoreError
from tuner.store import models
from tuner.store.column_values import Stray, StrayValue
from tuner.store.engine import Database, faults
from tuner.store.reconcile import Standing, standings
from tuner.store.row_ids import insert_row
from tuner.store.rows import RUN_STATUSES, LeftOut, check_row, sound

Row = dict[str, Any]
Ids = dict[str, dict[int, int]]  # by table: the source's ids to the destination's

_CHUNK = 1000  # rows in memory at a time


def _columns(table: Table, *others: str) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns if not column.primary_key and column.name not in others)


_ENTITIES: tuple[tuple[Table, tuple[str, ...]], ...] = (
    (models.device, ("slug",)),
    (models.environment, ("hash",)),
    (models.kernel, ("op", "name", "version", "source_hash")),
    (models.problem, _columns(models.problem)),
    (models.config, ("kernel_id", "hash")),
    (models.run, ("uuid",)),
    (models.family, ("run_id", "problem_id")),
    (models.family_range, ("family_id", "first_m")),
)
"""Tables in the order of their references, each with its natural key."""
_REFERENCES = {
    table.name: {key.parent.name: key.column.table.name for key in table.foreign_keys}
    for table in models.metadata.tables.values()
}
"""The columns of each table that refer to another table, with that table."""
_TRIAL = _columns(models.trial, "gpu_uuid")
"""What two copies of a trial agree on, unless one was edited; an export blanks the rest."""
_IN_TRIAL = ("run_id", "problem_id", "config_id")
"""A trial's natural key."""
_DECISION = _columns(models.winner, "superseded_by")
"""What identifies a decision: its whole row but for what supersedes it, which follows from the others."""
_LIMITS = ("sm_count", "memory_bytes", "shared_bytes", "l2_bytes")
_RATES = ("clock_mhz", "memory_gb_per_s")
"""Figures of the driver, which may differ between cards of one model: a difference is no conflict."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """What two databases say differently.

    Attributes:
        table: the table in question: "winner", "trial" or "device".
        text: one sentence: what differs, and what holds now.
    """

    table: str
    text: str


@dataclass(frozen=True, slots=True)
class Source:
    """A database that is read in one transaction. StoreError where that fails, in one line that names it.

    Attributes:
        left_out: its damaged rows, which stay where they are.
    """

    database: Database
    connection: Connection
    left_out: LeftOut

    def rows(self, table: Table, ids: Ids, *conditions: ColumnElement[bool]) -> Iterator[tuple[int, Row]]:
        """A table's rows with their ids, in the order they were written, a chunk in memory at a time.

        Args:
            table: whose rows.
            ids: the destination's ids, which the rows' references become. A row that refers to another is left out.
            conditions: which rows.
        """
        (primary,) = table.primary_key.columns
        query = select(table).where(*conditions).order_by(primary).execution_options(yield_per=_CHUNK)
        with faults(self.database):
            for found in self.connection.execute(query).mappings():
                try:
                    check_row(table, found)
                    theirs = _translated(found, table, ids)
                except StrayValue as e:
                    self.left_out.add(e)
                else:
                    yield found[primary], theirs

    def runs_with_trials(self) -> list[int]:
        """The runs that trials name, whether or not they are there."""
        query = select(models.trial.c.run_id).distinct().order_by(models.trial.c.run_id)
        with faults(self.database):
            runs = list(self.connection.execute(query).scalars())
        for stray in (run for run in runs if isinstance(run, Stray)):
            self.left_out.add(stray.text)
        return [run for run in runs if not isinstance(run, Stray)]


class Destination:
    """A database that gains the rows of others.

    Attributes:
        conflicts: what was found to differ so far, other than winners.
        new_winners: ids of the decisions that came with the sources.
    """

    def __init__(self, connection: Connection) -> None:
        """Use a connection that holds the write lock."""
        self.conflicts: list[Conflict] = []
        self.new_winners: set[int] = set()
        self._connection = connection
        self._known = {table.name: _by_key(connection, table, key) for table, key in _ENTITIES}
        self._decisions = _by_key(connection, models.winner, _DECISION)
        newest = select(func.max(models.trial.c.trial_id, type_=Integer))
        self._newest_trial: int = connection.execute(newest).scalar() or 0

    def take(self, source: Source) -> tuple[dict[str, int], list[Standing]]:
        """Take every row of a source that is not here.

        Decisions that come are history until `reconcile.decide_afresh` has looked at all of them.

        Returns:
            How many rows came, by table; what the source says of its decisions.
        """
        ids: Ids = {}
        counts: dict[str, int] = {}
        own_names = {(row["device_id"], row["name"]) for row in self._known["device"].values()}
        for table, key in _ENTITIES:
            before = len(self._known[table.name])
            ids[table.name] = self._take_entities(source, table, key, ids)
            counts[table.name] = len(self._known[table.name]) - before
        counts["device_alias"] = self._take_names(source, ids, own_names)
        counts["trial"] = sum(self._take_trials(source, run_id, ids) for run_id in source.runs_with_trials())
        counts["winner"], taken = self._take_winners(source, ids)
        return counts, taken

    def _take_entities(self, source: Source, table: Table, key: Sequence[str], ids: Ids) -> dict[int, int]:
        known = self._known[table.name]
        (primary,) = table.primary_key.columns
        found: dict[int, int] = {}
        for their_id, theirs in source.rows(table, ids):
            natural = tuple(theirs[name] for name in key)
            mine = known.get(natural)
            if mine is None:
                mine = known[natural] = theirs | {primary.name: insert_row(self._connection, table, theirs)}
            elif agreed := self._agreed(source, table, mine, theirs):
                self._connection.execute(update(table).where(primary == mine[primary.name]).values(agreed))
                mine.update(agreed)
            found[their_id] = mine[primary.name]
        return found

    def _agreed(self, source: Source, table: Table, mine: Row, theirs: Row) -> Row:
        """The columns to change where two databases have the same row, so that the result is the same in any order."""
        if table is models.device:
            differ = [f"{name} {mine[name]} or {theirs[name]}" for name in _LIMITS if mine[name] != theirs[name]]
            if differ:
                text = f"device {mine['slug']}: {', '.join(differ)} in {source.database.label}: the smaller is kept"
                self.conflicts.append(Conflict("device", text))
            # The smaller of each limit holds on both; of the drivers' names one must be the device's own.
            agreed = {name: min(mine[name], theirs[name]) for name in (*_LIMITS, "name")}
            for name in _RATES:
                agreed[name] = min((row[name] for row in (mine, theirs) if row[name] is not None), default=None)
        elif table is models.run:
            agreed = _agreed_run(source, mine, theirs)
        else:
            return {}
        return {name: value for name, value in agreed.items() if value != mine[name]}

    def _take_names(self, source: Source, ids: Ids, own_before: set[tuple[int, str]]) -> int:
        """Take the names that drivers gave a device; all but the device's own become its aliases."""
        alias = models.device_alias
        theirs = {(row["device_id"], row["name"]) for _, row in source.rows(alias, ids)}
        theirs |= {(ids["device"][their_id], row["name"]) for their_id, row in source.rows(models.device, ids)}
        own = {(row["device_id"], row["name"]) for row in self._known["device"].values()}
        known = {(row.device_id, row.name) for row in self._connection.execute(select(alias))}
        for device_id, name in own & known:
            self._connection.execute(delete(alias).where(alias.c.device_id == device_id, alias.c.name == name))
        missing = sorted((theirs | own_before) - own - known)
        if missing:
            self._connection.execute(insert(alias), [{"device_id": key, "name": name} for key, name in missing])
        return len(missing)

    def _take_trials(self, source: Source, their_run: int, ids: Ids) -> int:
        """Take the trials of one run. A copy made while the run wrote has fewer of them than a later one."""
        trial = models.trial
        mine = select(trial).where(trial.c.run_id == ids["run"].get(their_run))
        known = {(row["problem_id"], row["config_id"]): dict(row) for row in self._connection.execute(mine).mappings()}
        fresh: list[Row] = []
        added = differing = 0
        for _, theirs in source.rows(trial, ids, trial.c.run_id == their_run):
            there = known.get((theirs["problem_id"], theirs["config_id"]))
            if there is None:
                fresh.append(theirs)
                added += 1
            elif _content(there) == _content(theirs):
                if there["gpu_uuid"] is None and theirs["gpu_uuid"] is not None:
                    self._replace(there, {"gpu_uuid": theirs["gpu_uuid"]})
            else:
                differing += 1
                self._settle(there, theirs)
            if len(fresh) >= _CHUNK:
                self._connection.execute(insert(trial), fresh)
                fresh.clear()
        if fresh:
            self._connection.execute(insert(trial), fresh)
        if differing:
            text = f"{differing} of one run's trials differ in {source.database.label}: they were edited somewhere"
            self.conflicts.append(Conflict("trial", f"{text}; those that were here stay, of others the older"))
        return added

    def _settle(self, there: Row, theirs: Row) -> None:
        """Keep the trial that the destination had; of two that sources bring, keep the older."""
        came = there["trial_id"] > self._newest_trial
        if came and (theirs["measured_at"], _content(theirs)) < (there["measured_at"], _content(there)):
            self._replace(there, theirs)

    def _replace(self, there: Row, columns: Row) -> None:
        trial = models.trial
        self._connection.execute(update(trial).where(trial.c.trial_id == there["trial_id"]).values(columns))

    def _take_winners(self, source: Source, ids: Ids) -> tuple[int, list[Standing]]:
        """Take every decision, current or not."""
        evidence, here, added = self._evidence(source, ids), dict[int, int](), 0
        for their_id, theirs in source.rows(models.winner, ids | {"trial": evidence}):
            decision = tuple(theirs[name] for name in _DECISION)
            if decision not in self._decisions:
                winner_id = self._insert_winner(theirs)
                self._decisions[decision] = {"winner_id": winner_id}
                self.new_winners.add(winner_id)
                added += 1
            here[their_id] = self._decisions[decision]["winner_id"]
        with faults(source.database):
            found = standings(source.connection, source.database.label)
        return added, [replace(each, winner_id=here[each.winner_id]) for each in found if each.winner_id in here]

    def _evidence(self, source: Source, ids: Ids) -> dict[int, int]:
        """The trials behind a source's winners: its ids to those here."""
        trial, found = models.trial, dict[int, int]()
        behind = trial.c.trial_id.in_(select(models.winner.c.trial_id))
        for their_id, theirs in source.rows(trial, ids, behind):
            query = select(trial.c.trial_id).where(*(trial.c[name] == theirs[name] for name in _IN_TRIAL))
            found[their_id] = self._connection.execute(query).scalar_one()
        return found

    def _insert_winner(self, row: Row) -> int:
        # Two current winners are never allowed: it enters superseded by the one of its place, until all are sorted.
        winner = models.winner
        place = [winner.c[name] == row[name] for name in ("device_id", "environment_id", "problem_id")]
        current = select(winner.c.winner_id).where(*place, winner.c.superseded_by.is_(None))
        return insert_row(self._connection, winner, row | {"superseded_by": self._connection.execute(current).scalar()})


def _agreed_run(source: Source, mine: Row, theirs: Row) -> Row:
    """How a run ended, given two copies of it; what an export blanked (command line, host, node) comes back."""
    fixed = ("device_id", "environment_id", "protocol", "tool_version", "started_at")
    if differ := [name for name in fixed if mine[name] != theirs[name]]:
        raise StoreError(
            f"{source.database.label}: its run {mine['uuid']} is another than the one of that uuid in the destination"
            f" ({', '.join(differ)} differ): one of the two was edited, leave this source out"
        )
    return {
        "status": max(mine["status"], theirs["status"], key=RUN_STATUSES.index),
        "argv": max(mine["argv"], theirs["argv"], key=lambda argv: (len(argv), argv)),
        "host": max(mine["host"], theirs["host"]),
        **{name: max(mine[name] or "", theirs[name] or "") or None for name in ("ended_at", "heartbeat_at", "node")},
    }


def _by_key(connection: Connection, table: Table, key: Sequence[str]) -> dict[tuple[Any, ...], Row]:
    rows = map(sound, connection.execute(select(table)).mappings())
    return {tuple(row[name] for name in key): dict(row) for row in rows}


def _translated(row: RowMapping, table: Table, ids: Ids) -> Row:
    """A row without its key, its references those of the destination; what supersedes a winner is decided afresh.

    Raises:
        StrayValue: it refers to a row that is not there or was left out.
    """
    translated = {name: row[name] for name in _columns(table, "superseded_by")}
    (key,) = table.primary_key.columns
    for name, parent in _REFERENCES[table.name].items():
        if name in translated:
            if row[name] not in ids[parent]:
                raise StrayValue(
                    f"row {row[key]} of {table.name} refers to a row of {parent} that is not there or left out"
                )
            translated[name] = ids[parent][row[name]]
    return translated


def _content(trial: Row) -> str:
    return str([trial[name] for name in _TRIAL])
