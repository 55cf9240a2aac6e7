"""The charts of a report as Vega-Lite specifications. Their rows are named data sets, which the page fills.

A chart asks its page for some parameters, which problem is chosen for one; their values here stand until it answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.report.vega import FASTER, NEUTRAL, PALETTE, SLOWER, Spec

_PRESENT = {"name": "present", "value": []}
"""The kernels that a chart shows, which are those of its legend."""
_US = {"type": "log", "nice": False, "padding": 12}
_TIME = {"title": "time, µs (log scale)", "format": "~g", "tickCount": 6}
_FACTOR = {
    "title": "times as fast (log scale)",
    "titleAnchor": "start",
    "format": ".3~g",
    "orient": "top",
    "tickCount": 7,
}
"""An axis over a chart. The chart's menu is over its end, so that the title is over its begin."""
_ROW = {"type": "bar", "height": {"band": 1}}
_LEGEND_COLUMNS = {"expr": "max(2, floor(width / 130))"}


def charts(kernels: Sequence[str]) -> dict[str, Spec]:
    """Return every chart by its name on the page.

    Args:
        kernels: the names of all kernels, so that each has one colour everywhere.
    """
    color = _by_kernel(kernels)
    return {
        "overview": overview(),
        "landscape": landscape(color),
        "race": race(color),
        "ranges": ranges(color),
        "speed": speed(),
        "coverage": coverage(),
        "failures": failures(),
        "clock": card("clock_mhz", "SM clock, MHz"),
        "power": card("power_w", "power, W"),
        "regressions": regressions(),
    }


def _by_kernel(kernels: Sequence[str]) -> Spec:
    colors = [PALETTE[number % len(PALETTE)] for number in range(len(kernels))]
    scale = {"domain": list(kernels), "range": colors}
    legend = {"columns": _LEGEND_COLUMNS, "values": {"expr": "present"}}
    return {"field": "kernel", "type": "nominal", "scale": scale, "legend": legend}


def _tooltip(**titles: str) -> list[Spec]:
    return [{"field": name, "title": title} for name, title in titles.items()]


def _wide(height: Any, *layers: Spec, data: str | None, **parts: Any) -> Spec:
    """A chart as wide as its place on the page."""
    rows = {} if data is None else {"data": {"name": data}}
    fit = {"type": "fit-x", "contains": "padding"}  # the height is a chart's own, in rows or in pixels
    return {**rows, "width": "container", "height": height, "autosize": fit, "layer": list(layers), **parts}


def _layer(mark: Spec, encoding: Spec, *, only: str) -> Spec:
    """A layer of a chart, of the rows of which an expression is true alone."""
    return {"mark": mark, "transform": [{"filter": only}], "encoding": encoding}


def overview() -> Spec:
    """Winners against torch's library and the default config, the fastest first; `chosen` is marked."""
    y = {"field": "short", "type": "nominal", "sort": None, "title": None, "axis": {"ticks": False, "labelPadding": 8}}
    ratio = {"type": "log", "base": 2, "nice": False, "padding": 16}
    x = {"type": "quantitative", "scale": ratio, "axis": _FACTOR}
    titles = {"name": "problem", "label": "winner", "us_text": "time", "vendor_text": "vs torch"}
    tooltip = _tooltip(**titles, default_text="vs default")
    color = {"condition": {"test": "datum.vs_vendor >= 1", "value": FASTER}, "value": SLOWER}
    mark: Spec = {"type": "bar", "height": 9, "cornerRadius": 1}
    encoding = {"x": {"field": "vs_vendor", **x}, "x2": {"datum": 1}, "color": color}
    bar = _layer(mark, encoding, only="isValid(datum.vs_vendor)")
    mark = {"type": "point", "shape": "diamond", "size": 45, "filled": False, "strokeWidth": 1.5, "style": "ink"}
    tick = _layer(mark, {"x": {"field": "vs_default", **x}}, only="isValid(datum.vs_default)")
    mark = {**_ROW, "opacity": 0.16, "color": NEUTRAL}
    across = {"x": {"value": 0}, "x2": {"value": {"expr": "width"}}}
    chosen = _layer(mark, across, only="datum.problem === chosen")
    # A row answers clicks over its whole width.
    area = chosen | {"transform": [], "mark": {**_ROW, "opacity": 0, "cursor": "pointer"}}
    one = {"mark": {"type": "rule", "strokeWidth": 1}, "encoding": {"x": {"datum": 1, "scale": ratio}}}
    for layer in (bar, tick, chosen, area):
        layer["encoding"] = {**layer["encoding"], "y": y, "tooltip": tooltip}
    layers = (chosen, bar, tick, one, area)
    params = [{"name": "chosen", "value": -1}]
    return _wide({"step": 19}, *layers, data="winners", params=params)


def landscape(color: Spec) -> Spec:
    """The time of every trial of a problem over the values of one parameter."""
    x = {"field": "value", "type": "nominal", "sort": None, "title": None}
    axis = {"labelAngle": 0, "grid": False, "labelLimit": 110}
    slot = {"field": "slot", "type": "quantitative", "scale": {"domain": [0, 1]}}
    y = {"field": "us", "type": "quantitative", "scale": _US, "axis": _TIME}
    tooltip = _tooltip(label="config", us_text="time", state="state", message="message")
    at = {"x": {**x, "axis": axis}, "xOffset": slot, "tooltip": tooltip}
    timed = {**at, "y": y}
    mark: Spec = {"type": "tick", "orient": "vertical", "height": 11, "thickness": 1.5, "opacity": 0.75}
    below = {"y": {"value": {"expr": "height - 2"}}, "color": color}
    failed = _layer(mark, at | below, only="!isValid(datum.us)")
    mark = {"type": "circle", "size": 26, "opacity": 0.7}
    done = _layer(mark, timed | {"color": color}, only="isValid(datum.us)")
    mark = {"type": "point", "size": 110, "filled": False, "strokeWidth": 1.4, "style": "ink"}
    tied = _layer(mark, timed, only="datum.role === 'tie' && isValid(datum.us)")
    mark = mark | {"shape": "diamond", "size": 170, "strokeWidth": 2}
    won = _layer(mark, timed, only="datum.role === 'winner' && isValid(datum.us)")
    return _wide(330, *_references(y), done, failed, tied, won, data="trials", params=[_PRESENT])


def _references(y: Spec) -> list[Spec]:
    """Lines across at the times of torch's library and others, with their names."""
    data: Spec = {"data": {"name": "references"}}
    line = {"mark": {"type": "rule", "strokeDash": [4, 3]}, "encoding": {"y": y}}
    said: list[Spec] = [
        data
        | {
            "transform": [{"filter": f"datum.side === '{side}'"}],
            "mark": {"type": "text", "align": side, "baseline": "bottom", "dy": -3},
            "encoding": {"y": y, "x": {"value": at}, "text": {"field": "name"}},
        }
        for side, at in (("left", 2), ("right", {"expr": "width"}))
    ]
    return [data | line, *said]


def race(color: Spec) -> Spec:
    """The trials of a problem in the order in which they were measured, and the best so far."""
    last = {"expr": "last"}
    x = {
        "field": "number",
        "type": "quantitative",
        "scale": {"domain": [0, last], "nice": False},
        "axis": {"title": "trial, in the order of measuring", "grid": False, "tickMinStep": 1, "format": "d"},
    }
    y = {"field": "us", "type": "quantitative", "scale": _US, "axis": _TIME}
    at = {"x": x, "y": y}
    mark = {"type": "circle", "size": 26, "opacity": 0.55}
    told = {"color": color, "tooltip": _tooltip(number="trial", label="config", us_text="time")}
    points = _layer(mark, at | told, only="isValid(datum.us) && isValid(datum.number)")
    best = {
        "data": {"name": "best"},
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2, "style": "ink", "fill": None},
        "encoding": at,
    }
    stop = {"data": {"name": "stop"}, "mark": {"type": "rule", "strokeWidth": 1}, "encoding": {"x": x}}
    params = [_PRESENT, {"name": "last", "value": 1}]
    return _wide(260, *_references(y), points, best, stop, data="trials", params=params)


def _over_m() -> Spec:
    domain = [{"expr": "first"}, {"expr": "last"}]
    axis = {"title": "M (log scale)", "format": "~g", "tickCount": 8}
    return {"type": "quantitative", "scale": {"type": "log", "base": 2, "domain": domain, "nice": False}, "axis": axis}


_SPAN = [{"name": "first", "value": 1}, {"name": "last", "value": 2}]


def ranges(color: Spec) -> Spec:
    """Which config serves which Ms of a family."""
    y = {"field": "row", "type": "ordinal", "axis": {"labels": False, "ticks": False, "title": None, "minExtent": 61}}
    tooltip = _tooltip(label="config", span="M", evidence="evidence")
    bar = {
        "mark": {"type": "bar", "height": 8, "yOffset": 8, "cornerRadius": 1},
        "encoding": {
            "x": {"field": "first", **_over_m()},
            "x2": {"field": "end"},
            "color": color,
            "opacity": {"condition": {"test": "datum.evidence === 'measured'", "value": 1}, "value": 0.5},
            "tooltip": tooltip,
        },
    }
    said = {
        "mark": {"type": "text", "align": "left", "baseline": "middle", "dy": -5, "limit": {"expr": "width"}},
        "encoding": {"x": {"value": 2}, "text": {"field": "text"}, "tooltip": tooltip},
    }
    return _wide({"step": 32}, bar, said, data="ranges", encoding={"y": y}, params=[_PRESENT, *_SPAN])


def speed() -> Spec:
    """The rate of a family's winners over M, beside torch's library and the default config."""
    names = ["winner", "torch's library", "default config"]
    color = {
        "field": "who",
        "type": "nominal",
        "scale": {"domain": names, "range": [FASTER, SLOWER, NEUTRAL]},
        "legend": {"columns": _LEGEND_COLUMNS},
    }
    y = {
        "field": "tflops",
        "type": "quantitative",
        "scale": {"type": "log", "nice": False, "padding": 8},
        "axis": {"title": "TFLOP/s (log scale)", "format": "~g", "tickCount": 6, "minExtent": 46},
    }
    tooltip = _tooltip(m="M", who="whose", tflops="TFLOP/s", ratio="of the winner's speed", label="winner")
    mark = {"type": "line", "point": {"size": 30}, "strokeWidth": 1.6}
    line = {"mark": mark, "encoding": {"x": {"field": "m", **_over_m()}, "y": y, "color": color, "tooltip": tooltip}}
    return _wide(240, line, data="rungs", params=_SPAN)


def coverage() -> Spec:
    """What was tuned: M by N, one panel for each K. The page says how many panels stand beside one another."""
    log = {"type": "log", "base": 2, "nice": False, "padding": 10}
    x = {"type": "quantitative", "scale": log, "axis": {"title": "N", "format": "d", "tickCount": 4}}
    y = {"type": "quantitative", "scale": log, "axis": {"title": "M", "format": "d", "tickCount": 5}}
    color = {
        "field": "vs_vendor",
        "type": "quantitative",
        "scale": {"type": "log", "domain": [0.8, 1, 1.25], "range": [SLOWER, "#c3cad3", FASTER], "clamp": True}
        | {"interpolate": "rgb"},
        "legend": {"title": "times as fast as torch", "format": "~g", "values": [0.8, 1, 1.25]},
    }
    tooltip = _tooltip(name="problem", vendor_text="vs torch", state="state")
    mark = {"type": "rule", "strokeWidth": 13, "opacity": 0.3, "strokeCap": "round", "color": NEUTRAL}
    span = {"x": {"field": "n", **x}, "y": {"field": "first", **y}, "y2": {"field": "last"}}
    family = _layer(mark, span, only="isValid(datum.last)")
    point = {"x": {"field": "n", **x}, "y": {"field": "m", **y}, "tooltip": tooltip}
    mark = {"type": "circle", "size": 58, "opacity": 1, "style": "ink", "strokeWidth": 1, "cursor": "pointer"}
    tuned = _layer(mark, point | {"color": color}, only="isValid(datum.m) && isValid(datum.vs_vendor)")
    mark = {"type": "point", "size": 55, "strokeWidth": 1.5, "cursor": "pointer", "style": "ink"}
    shape = {"condition": {"test": "datum.tuned", "value": "circle"}, "value": "cross"}
    other = _layer(mark, point | {"shape": shape}, only="isValid(datum.m) && !isValid(datum.vs_vendor)")
    layers = {"width": 190, "height": 150, "layer": [family, tuned, other]}
    facet = {"field": "k", "type": "ordinal", "header": {"labelExpr": "'K = ' + datum.value", "labelAnchor": "start"}}
    return {"data": {"name": "coverage"}, "facet": facet, "columns": 4, "spec": layers}


def failures() -> Spec:
    """How the trials of each kernel ended."""
    states = ["INVALID", "COMPILE_ERROR", "OUT_OF_RESOURCES", "RUNTIME_ERROR", "WRONG_RESULT", "TIMEOUT", "CRASHED"]
    colors = ["#a9b4c0", "#8b6fb0", "#d9a441", "#d9792b", "#c0392b", "#5f6b7a", "#2d7d7d"]
    encoding = {
        "y": {"field": "kernel", "type": "nominal", "title": None, "axis": {"ticks": False, "labelPadding": 8}},
        "x": {
            "field": "share",
            "type": "quantitative",
            "axis": {"title": "share of the kernel's trials that failed", "format": "~%", "tickCount": 6},
        },
        "color": {
            "field": "state",
            "type": "nominal",
            "scale": {"domain": states, "range": colors},
            "legend": {"columns": {"expr": "max(2, floor(width / 150))"}},
        },
        "order": {"field": "order", "type": "quantitative"},
        "tooltip": _tooltip(kernel="kernel", state="state", count="trials", message="said most often"),
    }
    return _wide({"step": 22}, {"mark": {"type": "bar", "height": 11}, "encoding": encoding}, data="failures")


def card(field: str, title: str) -> Spec:
    """A figure of the card over the time of a run."""
    axis = {"title": "time of day, UTC", "grid": False, "format": "%H:%M:%S"}
    axis["tickCount"] = {"expr": "max(2, floor(width / 140))"}
    slowed = ["nothing", "power limit", "heat or hardware"]
    encoding = {
        "x": {"field": "time", "type": "temporal", "scale": {"type": "utc"}, "axis": axis},
        "y": {
            "field": field,
            "type": "quantitative",
            "scale": {"zero": False, "nice": True, "padding": 4},
            "axis": {"title": title, "tickCount": 4, "minExtent": 46},
        },
        "color": {
            "field": "slowed",
            "type": "nominal",
            "scale": {"domain": slowed, "range": [FASTER, NEUTRAL, SLOWER]},
            "legend": {"title": "slowed down by"},
        },
        "tooltip": [
            {"field": "time", "type": "temporal", "title": "time, UTC", "format": "%Y-%m-%d %H:%M:%S"},
            *_tooltip(
                name="problem", clock_mhz="SM clock, MHz", power_w="power, W", slowed="slowed down by", card="card"
            ),
        ],
    }
    points = {"mark": {"type": "circle", "size": 14, "opacity": 0.65}, "encoding": encoding}
    return _wide(130, points, data="card")


def regressions() -> Spec:
    """The time before over the time now, by problem, the most slowed first."""
    encoding = {
        "y": {"field": "short", "type": "nominal", "sort": None, "title": None, "axis": {"ticks": False}},
        "x": {
            "field": "ratio",
            "type": "quantitative",
            "scale": {"type": "log", "base": 2, "nice": False, "padding": 16},
            "axis": _FACTOR,
        },
        "x2": {"datum": 1},
        "color": {"condition": {"test": "datum.ratio >= 1", "value": FASTER}, "value": SLOWER},
        "tooltip": _tooltip(name="problem", ratio="times as fast", before="before", after="now"),
    }
    return _wide({"step": 19}, {"mark": {"type": "bar", "height": 9}, "encoding": encoding}, data="changes")
