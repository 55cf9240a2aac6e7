"""Draws a contest: a curve of square problems, and bars for each shape of a suite, looking as `tuner report` does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from tuner.bench.document import ContestReport
from tuner.bench.score import AUTOTUNE, INDUCTOR, OURS, VENDOR, Row
from tuner.files import write
from tuner.problem import Problem, dtype
from tuner.report import vega
from tuner.report.vega import FASTER, PALETTE, SLOWER

COLORS = {OURS: FASTER, VENDOR: SLOWER, INDUCTOR: PALETTE[2], AUTOTUNE: PALETTE[3]}
_PANEL = {"width": 460, "height": 320}
_BAR_WIDTH = 7
CURVE_SIZES = 4
"""Square problems of fewer sizes are drawn as bars like all others."""
_LIBRARY = {"nvidia": "cuBLAS", "amd": "hipBLASLt"}
_IN_LIBRARY = ("matmul", "bmm")
"""The ops that torch gives to a library; others' rival is torch itself."""
_PLAIN = "matmul"
"""The op whose problems are shown without its name."""


def draw(report: ContestReport, folder: Path) -> list[Path]:
    """Draw curve.png of square problems, M = N = K, and bars-<suite>.png of each suite that has others.

    The curve has a panel for each dtype and layout with at least `CURVE_SIZES` sizes.

    Args:
        report: what was measured.
        folder: where the files are written; it must exist.

    Returns:
        The files written.

    Raises:
        TunerError: a file cannot be written.
    """
    played = [row for row in report.rows if row.figures]
    panels = {label: rows for label, rows in _squares(played).items() if len(rows) >= CURVE_SIZES}
    drawn: list[Path] = []
    if panels:
        drawn.append(_save(_curve(report, panels), folder / "curve.png"))
    on_curve = {row.problem for rows in panels.values() for row in rows}
    for suite, rows in _suites(played).items():
        comparable = [row for row in rows if VENDOR in row.figures]
        if comparable and not {row.problem for row in rows} <= on_curve:
            name = re.sub(r"[^\w.-]+", "-", suite)
            drawn.append(_save(_bars(report, suite, comparable), folder / f"bars-{name}.png"))
    return drawn


def _squares(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return square problems by dtype, layout and so on, each list sorted by size."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        problem = row.problem
        if problem.m == problem.n == problem.k:
            op, _, kind = str(problem).split(" ", 2)
            found.setdefault(kind if op == _PLAIN else f"{op} {kind}", []).append(row)
    return {kind: sorted(same, key=lambda row: row.problem.m) for kind, same in found.items()}


def _suites(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        for suite in dict.fromkeys(place.suite for place in row.listed.places):
            found.setdefault(suite, []).append(row)
    return found


def _curve(report: ContestReport, panels: dict[str, list[Row]]) -> vega.Spec:
    x = {"field": "size", "type": "quantitative", "title": "M = N = K", "scale": {"nice": False}}
    title = "TFLOP/s (median, 20% to 80%)"
    drawn = []
    for kind, rows in panels.items():
        names = _contestants(report, rows)
        values = [
            {"who": _label(report, name, rows), "size": row.problem.m, "tflops": row.tflops(found.median_us)}
            | {"slow": row.tflops(found.p80_us), "fast": row.tflops(found.p20_us)}
            for name in names
            for row in rows
            if (found := row.figures.get(name))
        ]
        shared = {"x": x, "color": _color(report, names, rows)}
        band = {"y": {"field": "slow", "type": "quantitative", "title": title}, "y2": {"field": "fast"}}
        line = {"y": {"field": "tflops", "type": "quantitative", "title": title}}
        layers = [
            {"mark": {"type": "area", "opacity": 0.2}, "encoding": shared | band},
            {"mark": {"type": "line", "point": {"size": 14}, "strokeWidth": 1.6}, "encoding": shared | line},
        ]
        drawn.append({**_PANEL, "title": kind, "data": {"values": values}, "layer": layers})
    return {"title": _title(report), "hconcat": drawn, "resolve": {"scale": {"color": "independent"}}}


def _bars(report: ContestReport, suite: str, rows: Sequence[Row]) -> vega.Spec:
    names = [name for name in _contestants(report, rows) if name != VENDOR]
    values = [
        {
            "who": _label(report, name, rows),
            "shape": _shown(row.problem),
            "speed": _speed(row, name),
        }
        for row in rows
        for name in names
        if name in row.figures
    ]
    color = _color(report, names, rows)
    x = {"field": "shape", "type": "nominal", "sort": None, "title": None, "axis": {"labelAngle": -90} | _WHOLE}
    y = {"field": "speed", "type": "quantitative", "title": "speed relative to the vendor's library"}
    bar = {
        "x": x,
        "y": y,
        "color": color,
        "xOffset": {"field": "who", "type": "nominal", "sort": color["scale"]["domain"]},
    }
    one = {"y": {"datum": 1}, "color": {"value": COLORS[VENDOR]}}
    label = {"align": "right", "baseline": "bottom", "dy": -3, "text": _label(report, VENDOR, rows)}
    layers = [
        {"mark": {"type": "bar"}, "encoding": bar},
        {"mark": {"type": "rule", "strokeWidth": 1.4}, "encoding": one},
        {"mark": {"type": "text"} | label, "encoding": one | {"x": {"value": {"expr": "width"}}}},
    ]
    width = max(460, _BAR_WIDTH * len(rows) * (len(names) + 1))
    title = {"text": suite, "subtitle": _title(report)}
    return {**_PANEL, "title": title, "width": width, "data": {"values": values}, "layer": layers}


def _shown(problem: Problem) -> str:
    return str(problem).removeprefix(f"{_PLAIN} ")


_WHOLE = {"labelLimit": 400, "labelOverlap": False}


def _color(report: ContestReport, names: Sequence[str], rows: Sequence[Row]) -> vega.Spec:
    scale = {"domain": [_label(report, name, rows) for name in names], "range": [COLORS[name] for name in names]}
    return {"field": "who", "type": "nominal", "scale": scale, "legend": {"columns": 2, "symbolOpacity": 1}}


def _speed(row: Row, name: str) -> float:
    """Return the vendor's time over a contestant's: from paired ratios where ours took part, else from medians."""
    vendor, own = row.ratio(VENDOR), row.ratio(name)
    if vendor is not None and (own is not None or name == OURS):
        return vendor / (1.0 if own is None else own)
    return row.figures[VENDOR].median_us / row.figures[name].median_us


def _contestants(report: ContestReport, rows: Iterable[Row]) -> list[str]:
    playing = {name for row in rows for name in row.figures}
    return [name for name in (OURS, *report.rivals) if name in playing]


def _label(report: ContestReport, name: str, rows: Iterable[Row]) -> str:
    if name == VENDOR:
        problems = [row.problem for row in rows]
        if any(problem.op not in _IN_LIBRARY for problem in problems):
            return "torch"
        library = _LIBRARY.get(report.device.vendor, "torch")
        fp8 = all(dtype.is_fp8(problem.a_dtype) for problem in problems)
        return f"{library} (torch._scaled_mm)" if fp8 else library
    return {OURS: "triton-tuner", INDUCTOR: "TorchInductor, Triton only", AUTOTUNE: "triton.autotune"}[name]


def _title(report: ContestReport) -> str:
    versions = report.environment
    meaningless = "; these figures say nothing about a GPU" if report.device.is_interpreter else ""
    return f"{report.device.name}, Triton {versions.triton}, torch {versions.torch}{meaningless}"


def _save(chart: vega.Spec, path: Path) -> Path:
    return write(path, lambda partial: partial.write_bytes(vega.png(chart)))
