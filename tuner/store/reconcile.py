"""Which of several decisions about one place is current: by what stands behind them, never by their times.

A place is a device, an environment and a problem. Times are not compared: two decisions come from two finals, perhaps
on two cards, and only contestants of one final were measured in turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select, update

from tuner.lookup.database import WINNER_JOINS
from tuner.store.column_values import Stray
from tuner.store.models import config, device, environment, kernel, problem, run, trial, winner
from tuner.store.records import State
from tuner.store.rows import joined, problem_of, sound


@dataclass(frozen=True, slots=True)
class Standing:
    """What one database says of a decision.

    Attributes:
        location: where the database is.
        winner_id: the decision.
        current: whether nothing superseded it there.
        later: how many decisions of the same second it superseded there, one after the other.
    """

    location: str
    winner_id: int
    current: bool
    later: int


def standings(connection: Connection, location: str) -> list[Standing]:
    """What a database says of each of its decisions."""
    query = select(winner.c.winner_id, winner.c.superseded_by, winner.c.decided_at).order_by(winner.c.winner_id)
    # A damaged one is named where its row is read; what it says of itself is not taken.
    decisions = {row[0]: (row[1], row[2]) for row in connection.execute(query) if Stray not in map(type, row)}
    later = dict.fromkeys(decisions, 0)
    for start, (_, decided_at) in decisions.items():
        winner_id = start
        for steps in range(1, len(decisions)):
            successor = decisions[winner_id][0]
            if successor not in decisions or decisions[successor][1] != decided_at:
                break
            later[successor] = max(later[successor], steps)
            winner_id = successor
    return [Standing(location, each, successor is None, later[each]) for each, (successor, _) in decisions.items()]


def decide_afresh(connection: Connection, standings: Sequence[Standing], new: Set[int]) -> list[str]:
    """Put the decisions of every place in order; the last is current, and each other is superseded by the next.

    The first difference of these counts. A decision comes later in the order whose config has a COMPLETE trial for its
    own device, environment, problem and protocol; then one on the newest version of its kernel that the database knows;
    then one of a newer protocol; then one decided later, where a database that holds several decisions of one second
    says which came later. What is still equal then is ordered by its run and content.

    Args:
        connection: it holds the write lock.
        standings: what each database says of its decisions.
        new: decisions that came from elsewhere: the places to speak of.

    Returns:
        One sentence for each decision that was current somewhere and lost to another config, in a place to speak of.
    """
    later: dict[int, int] = {}
    for standing in standings:
        later[standing.winner_id] = max(later.get(standing.winner_id, 0), standing.later)
    places: dict[tuple[int, ...], list[tuple[tuple[Any, ...], RowMapping]]] = {}
    for row in _decisions(connection):
        place = (row["device_id"], row["environment_id"], row["problem_id"])
        places.setdefault(place, []).append((_rank(row, later), row))
    kept: dict[int, RowMapping] = {}
    for found in places.values():
        ordered = [row for _, row in sorted(found, key=lambda pair: pair[0])]
        _chain(connection, ordered)
        if not new.isdisjoint(row["winner_id"] for row in ordered):
            kept.update({row["winner_id"]: ordered[-1] for row in ordered})
    return _disputes(connection, [each for each in standings if each.current and each.winner_id in kept], kept)


def _decisions(connection: Connection) -> list[RowMapping]:
    """Every decision with what ranks it."""
    newest = (
        select(kernel.c.op, kernel.c.name, func.max(kernel.c.version).label("version"))
        .group_by(kernel.c.op, kernel.c.name)
        .subquery()
    )
    measured = run.alias("measured")
    evident = (
        (trial.c.state == State.COMPLETE.value)
        & (trial.c.config_id == winner.c.config_id)
        & (trial.c.problem_id == winner.c.problem_id)
        & (measured.c.device_id == winner.c.device_id)
        & (measured.c.environment_id == winner.c.environment_id)
        & (measured.c.protocol == run.c.protocol)
    )
    query = (
        select(
            winner,
            evident.label("evident"),
            (kernel.c.version == newest.c.version).label("newest_version"),
            run.c.protocol,
            run.c.uuid,
            measured.c.uuid.label("measured_by"),
            config.c.hash,
        )
        .select_from(joined(winner, WINNER_JOINS))
        .join(trial, winner.c.trial_id == trial.c.trial_id)
        .join(measured, trial.c.run_id == measured.c.run_id)
        .join(newest, (newest.c.op == kernel.c.op) & (newest.c.name == kernel.c.name))
    )
    return [sound(row) for row in connection.execute(query.order_by(winner.c.winner_id)).mappings()]


def _rank(row: RowMapping, later: Mapping[int, int]) -> tuple[Any, ...]:
    evidence = (bool(row["evident"]), bool(row["newest_version"]), row["protocol"])
    when = (row["decided_at"], later.get(row["winner_id"], 0))
    figures = tuple(row[name] or 0.0 for name in ("median_us", "default_us", "vendor_us"))
    return (*evidence, *when, row["uuid"], row["measured_by"], row["hash"], *figures, row["ties"])


def _chain(connection: Connection, ordered: list[RowMapping]) -> None:
    # The last is set free only when all others are superseded: two current ones are never allowed.
    for row, successor in zip(ordered, [*(later["winner_id"] for later in ordered[1:]), None], strict=True):
        if row["superseded_by"] != successor:
            changed = update(winner).where(winner.c.winner_id == row["winner_id"])
            connection.execute(changed.values(superseded_by=successor))


def _disputes(connection: Connection, standings: Sequence[Standing], kept: dict[int, RowMapping]) -> list[str]:
    origin = {standing.winner_id: standing.location for standing in reversed(standings)}
    sentences: dict[str, None] = {}
    for standing in standings:
        current = kept[standing.winner_id]["winner_id"]
        if standing.winner_id == current:
            continue
        lost, won = _described(connection, standing.winner_id), _described(connection, current)
        if lost["config_id"] == won["config_id"]:
            continue
        kept_now, history = _decision(won, origin.get(current)), _decision(lost, standing.location)
        sentences[f"{_place(won)}: kept is {kept_now}; history is {history}"] = None
    return list(sentences)


def _place(row: RowMapping) -> str:
    return f"{problem_of(row)} on {row['slug']} under Triton {row['triton']}"


def _decision(row: RowMapping, location: str | None) -> str:
    evidence = f"decided {row['decided_at']}, protocol {row['protocol']}, version {row['version']}"
    return f"{row['name']} {row['parameters']}{f' of {location}' if location else ''} ({evidence})"


def _described(connection: Connection, winner_id: int) -> RowMapping:
    columns = (winner.c.config_id, winner.c.decided_at, run.c.protocol, kernel.c.name, kernel.c.version)
    query = (
        select(*columns, device.c.slug, environment.c.triton, config.c.parameters, problem)
        .select_from(joined(winner, WINNER_JOINS))
        .where(winner.c.winner_id == winner_id)
    )
    return connection.execute(query).mappings().one()
