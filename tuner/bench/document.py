"""A contest as one JSON document, and files that are written completely or not at all."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tuner
from tuner import files
from tuner.bench.score import OURS, Figures, Row, geomeans
from tuner.hardware.device import Device, Environment
from tuner.store.records import PROTOCOL


@dataclass(frozen=True, slots=True)
class ContestReport:
    """The result of a contest.

    Attributes:
        device, environment: what was measured on.
        rivals: the rivals that ours was compared with.
        rows: one for each problem that was measured.
        unplayed: how many problems were not.
    """

    device: Device
    environment: Environment
    rivals: tuple[str, ...]
    rows: tuple[Row, ...]
    unplayed: int


def document(report: ContestReport, argv: Sequence[str]) -> dict[str, Any]:
    """Return the document that `--json` prints and bench.json holds.

    Args:
        report: the contest.
        argv: the command line.
    """
    return {
        "tuner": tuner.__version__,
        "date": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "argv": list(argv),
        "protocol": PROTOCOL,
        "device": asdict(report.device),
        "environment": asdict(report.environment),
        "contestants": [OURS, *report.rivals],
        "unplayed": report.unplayed,
        "rows": [_row(row) for row in report.rows],
        "geomeans": [asdict(mean) for mean in geomeans(report.rows, report.rivals)],
    }


def write_json(path: Path, body: dict[str, Any]) -> None:
    """Write a JSON document.

    Raises:
        TunerError: it cannot be written.
    """
    files.write_text(path, json.dumps(body, indent=1, sort_keys=True) + "\n")


def _row(row: Row) -> dict[str, Any]:
    match = row.match
    return {
        "problem": row.problem.fields(),
        "places": [asdict(place) for place in row.listed.places],
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
    paired = figures.against_ours
    return {
        "median_us": figures.median_us,
        "p20_us": figures.p20_us,
        "p80_us": figures.p80_us,
        "rounds": figures.rounds,
        "tflops": row.tflops(figures.median_us),
        "gbytes_s": row.gbytes_s(figures.median_us),
        "time_over_ours": paired and {"ratio": paired.ratio, "low": paired.low, "high": paired.high},
        "tuning_s": figures.tuning_s,
    }
