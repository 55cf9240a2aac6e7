"""Winners as tables that ship: one file for each op and device."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tuner import files
from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.lookup import families, match_rules
from tuner.lookup.row import Provenance, Row
from tuner.lookup.table import Table
from tuner.problem.family import Family
from tuner.store.records import DecidedFamily, Winner

Measured = TypeVar("Measured", Row, Winner)


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a database's winners that ships.

    Attributes:
        tables: by device and op.
        stale: winners left out because a newer version of their kernel has winners on that device, or is installed: a
            lookup would refuse them.
        older: winners left out because the same problem was decided again under another environment.
    """

    tables: tuple[Table, ...]
    stale: int
    older: int


def select(
    winners: Iterable[Winner], decided: Iterable[DecidedFamily] = (), *, for_installed: bool = False
) -> Selection:
    """Choose what ships: each kernel's newest version, and the winner of each problem that was decided last.

    Args:
        winners: current winners.
        decided: families, those decided last first. Their ranges ship with the rows that do; where two hold one M, the
            one decided last does.
        for_installed: whether a kernel's newest version is left out, too, where a newer one is installed.
    """
    ranges: dict[tuple[str, str], list[Family]] = {}
    for each in decided:
        ranges.setdefault((each.device.slug, each.family.problem.op), []).append(each.family)
    by_table: dict[tuple[str, str], list[Winner]] = {}
    for winner in winners:
        by_table.setdefault((winner.device.slug, winner.problem.op), []).append(winner)
    tables: list[Table] = []
    stale = older = 0
    for place, found in sorted(by_table.items()):
        current = [each for each in newest_versions(found) if not (for_installed and _is_outdated(each))]
        chosen = _newest_decisions(current)
        stale += len(found) - len(current)
        older += len(current) - len(chosen)
        if chosen:
            tables.append(_table(chosen[0].device, chosen, ranges.get(place, ())))
    return Selection(tuple(tables), stale, older)


def write(tables: Iterable[Table], directory: Path) -> list[Path]:
    """Write tables into a folder, which is made when missing; returns the files."""
    files.make_folder(directory)
    return [table.write(directory) for table in tables]


def usable(rows: Iterable[Row], device: Device) -> tuple[list[Row], dict[Row, str]]:
    """The rows whose configs a lookup uses for their own problems, and why it refuses the others."""
    reasons = {row: match_rules.refusal(row, row.problem, device) for row in rows}
    refused = {row: reason for row, reason in reasons.items() if reason is not None}
    return [row for row in reasons if row not in refused], refused


def newest_versions(found: Collection[Measured]) -> list[Measured]:
    """Those on the newest version of their kernel, which is the only one that a table holds."""
    newest: dict[str, int] = {}
    for each in found:
        newest[each.config.kernel] = max(newest.get(each.config.kernel, 0), each.kernel_version)
    return [each for each in found if each.kernel_version == newest[each.config.kernel]]


def _is_outdated(winner: Winner) -> bool:
    try:
        spec = registry.find(winner.problem.op, winner.config.kernel, winner.problem.source)
    except KernelError:  # who has the kernel knows its version
        return False
    return winner.kernel_version < spec.version


def _newest_decisions(winners: list[Winner]) -> list[Winner]:
    # Two decided within one second: the environment's versions break the tie, so that two exports agree.
    ordered = sorted(winners, key=lambda w: (w.decided_at, str(w.environment), w.config))
    return list({winner.problem: winner for winner in ordered}.values())


def _table(device: Device, winners: list[Winner], ranges: Iterable[Family]) -> Table:
    date = max(winner.decided_at for winner in winners)
    rows = {winner.problem: row_of(winner) for winner in winners}
    shipped = families.shippable(ranges, rows)
    return Table(winners[0].problem.op, device, date, tuple(rows.values()), tuple(shipped))


def row_of(winner: Winner) -> Row:
    """A winner as it ships."""
    return Row(
        problem=winner.problem,
        config=winner.config,
        kernel_version=winner.kernel_version,
        made=Provenance(winner.environment, winner.protocol, winner.tool_version),
        median_us=winner.median_us,
        vs_default=winner.vs_default,
        vs_vendor=winner.vs_vendor,
        ties=winner.ties,
    )
