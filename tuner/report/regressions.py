"""What became slower: winners compared with those of another edition, where their times may be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tuner.lookup.table import Table
from tuner.report.measurements import Measurements
from tuner.tables.diff import compare
from tuner.tables.export import select


def regressions(found: Measurements, against: Iterable[Table], name: str) -> dict[str, Any]:
    """Compare winners with another edition's as they would ship, and return what the page shows of that.

    Args:
        found: the measurements; of the other edition only their problems and devices count.
        against: the other edition's tables.
        name: what to call it.

    Returns:
        "changes", those that slowed most first, each with the time before over the time now ("ratio") and both times
        in microseconds; how many rows are the "same", how many cannot be compared ("other_versions"), and why there is
        "nothing" to compare.
    """
    ours, against = select(found.winners, found.families).tables, list(against)
    changes, same, other_versions = [], 0, 0
    for difference in compare(against, ours):
        mine = sum(
            len(table.rows) for table in ours if (table.op, table.device.slug) == (difference.op, difference.device)
        )
        same += mine - len(difference.only_after) - len(difference.changes)
        for change in difference.changes:
            if change.ratio is None:
                other_versions += 1
                continue
            before, after = change.before, change.after
            changes.append(
                {"device": difference.device, "problem": str(after.problem), "ratio": round(change.ratio, 4)}
                | {"before": before.config.label, "after": after.config.label}
                | {"before_us": round(before.median_us, 3), "after_us": round(after.median_us, 3)}
            )
    changes.sort(key=lambda change: (change["ratio"], change["device"], change["problem"]))
    nothing = "" if changes or same else _why_nothing(ours, against, are_other_versions=other_versions > 0)
    return {"name": name, "changes": changes, "same": same, "other_versions": other_versions, "nothing": nothing}


def _why_nothing(ours: Sequence[Table], theirs: Sequence[Table], *, are_other_versions: bool) -> str:
    if are_other_versions:
        return "what both hold was measured under other versions or another protocol"
    mine, its = (sorted({table.device.slug for table in edition}) for edition in (ours, theirs))
    if set(mine).isdisjoint(its):
        return f"it holds winners of {', '.join(its)}, this report those of {', '.join(mine) or 'no device'}"
    return "no problem has a winner in both"
