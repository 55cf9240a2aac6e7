"""Draws a contest with matplotlib: a curve of square problems, and bars for each shape of a suite."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.bench.document import ContestReport
from tuner.bench.score import AUTOTUNE, INDUCTOR, OURS, VENDOR, Row
from tuner.errors import TunerError
from tuner.files import write
from tuner.problem import dtype

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {OURS: "#1b6ca8", VENDOR: "#5aa02c", INDUCTOR: "#e07b39", AUTOTUNE: "#8d6ab8"}
_DPI = 120
_PANEL_INCHES = (7.0, 5.0)
_BAR_INCHES = 0.16
CURVE_SIZES = 4
"""Square problems of fewer sizes are drawn as bars like all others."""
_LIBRARY = {"nvidia": "cuBLAS", "amd": "hipBLASLt"}


def require() -> None:
    """Check that matplotlib is installed before anything is measured.

    Raises:
        TunerError: it is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as e:
        raise TunerError(
            f"--out draws with matplotlib, which is not here ({e}): pip install 'triton-tuner[report]'"
        ) from e


def draw(report: ContestReport, folder: Path) -> list[Path]:
    """Draw curve.png for at least `CURVE_SIZES` sizes of square problems, and bars-<suite>.png for suites with others.

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
            _, _, kind = str(problem).split(" ", 2)
            found.setdefault(kind, []).append(row)
    return {kind: sorted(same, key=lambda row: row.problem.m) for kind, same in found.items()}


def _suites(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        for suite in dict.fromkeys(place.suite for place in row.listed.places):
            found.setdefault(suite, []).append(row)
    return found


def _curve(report: ContestReport, panels: dict[str, list[Row]]) -> Figure:
    figure, axes = _figure(len(panels), (_PANEL_INCHES[0] * len(panels), _PANEL_INCHES[1]))
    for axis, (kind, rows) in zip(axes, panels.items(), strict=True):
        for name in _contestants(report, rows):
            own = [(row, row.figures[name]) for row in rows if name in row.figures]
            sizes = [row.problem.m for row, _ in own]
            axis.plot(
                sizes,
                [row.tflops(found.median_us) for row, found in own],
                color=COLORS[name],
                label=_label(report, name, rows),
                marker="o",
                markersize=3,
            )
            slow = [row.tflops(found.p80_us) for row, found in own]
            fast = [row.tflops(found.p20_us) for row, found in own]
            axis.fill_between(sizes, slow, fast, color=COLORS[name], alpha=0.25, linewidth=0)
        axis.set(title=kind, xlabel="M = N = K", ylabel="TFLOP/s (median, 20% to 80%)", ylim=(0, None))
        _finish(axis)
    figure.suptitle(_title(report))
    return figure


def _bars(report: ContestReport, suite: str, rows: Sequence[Row]) -> Figure:
    names = [name for name in _contestants(report, rows) if name != VENDOR]
    inches = max(_PANEL_INCHES[0], 1.5 + _BAR_INCHES * len(rows) * (len(names) + 1))
    figure, (axis,) = _figure(1, (inches, _PANEL_INCHES[1] + 1.5))
    width = 0.8 / max(1, len(names))
    for offset, name in enumerate(names):
        own = [(index, row) for index, row in enumerate(rows) if name in row.figures]
        axis.bar(
            [index + (offset - (len(names) - 1) / 2) * width for index, _ in own],
            [_speed(row, name) for _, row in own],
            width,
            color=COLORS[name],
            label=_label(report, name, rows),
        )
    axis.axhline(1, color=COLORS[VENDOR], linewidth=1.2, label=_label(report, VENDOR, rows))
    axis.set_xticks(range(len(rows)), [_shape(row) for row in rows], rotation=90, fontsize=7)
    axis.set(title=suite, ylabel="speed against the vendor's library", xlim=(-0.6, len(rows) - 0.4))
    axis.margins(y=0.15)  # leaves room for the legend
    _finish(axis)
    figure.suptitle(_title(report))
    return figure


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
        library = _LIBRARY.get(report.device.vendor, "torch")
        fp8 = all(dtype.is_fp8(row.problem.a_dtype) for row in rows)
        return f"{library} (torch._scaled_mm)" if fp8 else library
    return {OURS: "triton-tuner", INDUCTOR: "TorchInductor, Triton only", AUTOTUNE: "triton.autotune"}[name]


def _shape(row: Row) -> str:
    _, shape, rest = str(row.problem).split(" ", 2)
    return f"{shape}\n{rest}"


def _title(report: ContestReport) -> str:
    versions = report.environment
    meaningless = "; these figures say nothing about a GPU" if report.device.is_interpreter else ""
    return f"{report.device.name}, Triton {versions.triton}, torch {versions.torch}{meaningless}"


def _figure(panels: int, inches: tuple[float, float]) -> tuple[Figure, Sequence[Any]]:
    # pyplot is avoided, because it would choose a backend for a display and keep every figure.
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, layout="constrained")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _finish(axis: Axes) -> None:
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, ncols=2)


def _save(figure: Figure, path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    write(path, lambda partial: figure.savefig(partial, format="png", dpi=_DPI))
    return path
