"""A contest as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tuner
from tuner.bench.score import OURS, Figures, Row, geomeans
from tuner.hardware.device import Device, Environment
from tuner.location import without_password
from tuner.store.records import PROTOCOL, now


@dataclass(frozen=True, slots=True)
class ContestReport:
    """The result of a contest.

    Attributes:
        device, environment: where it was played.
        rivals: who played beside ours.
        rows: one for each problem that was played.
        unplayed: how many problems were not, since it was stopped.
    """

    device: Device
    environment: Environment
    rivals: tuple[str, ...]
    rows: tuple[Row, ...]
    unplayed: int


def document(report: ContestReport, argv: Sequence[str]) -> dict[str, Any]:
    """Return what `--json` prints and bench.json holds; `argv` is the command line that asked for the contest."""
    return {
        "tuner": tuner.__version__,
        "date": now(),
        "argv": [*map(without_password, argv)],
        "protocol": PROTOCOL,
        "device": report.device,
        "environment": report.environment,
        "contestants": [OURS, *report.rivals],
        "unplayed": report.unplayed,
        "rows": [_row(row) for row in report.rows],
        "geomeans": geomeans(report.rows, report.rivals),
    }


def _row(row: Row) -> dict[str, Any]:
    match = row.match
    return {
        "problem": row.problem,
        "places": row.listed.places,
        "kernel": match and match.kernel,
        "config": match and dict(match.config),
        "rule": match and match.rule,
        "source": match and match.source,
        "grade": match and match.grade,
        "flops": row.flops,
        "bytes_moved": row.bytes_moved,
        "memory_bound": row.memory_bound,
        "contestants": {
            **{name: _figures(row, found) for name, found in row.figures.items()},
            **{name: {"reason": reason} for name, reason in row.reasons.items()},
        },
    }


def _figures(row: Row, figures: Figures) -> dict[str, Any]:
    found = asdict(figures)
    paired = found.pop("against_ours")
    return found | {
        "tflops": row.tflops(figures.median_us),
        "gbytes_s": row.gbytes_s(figures.median_us),
        "time_over_ours": paired and {name: paired[name] for name in ("ratio", "low", "high")},
    }
