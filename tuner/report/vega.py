"""Vega-Lite by `vl-convert-python`: how charts look, its JavaScript for a page, and pictures without a browser."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tuner.errors import TunerError

Spec = dict[str, Any]
"""A chart in Vega-Lite."""
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK, MUTED, GRID = ("#1f2933", "#e4e7eb"), ("#5c6773", "#9aa5b1"), ("#e4e7eb", "#2f3a46")
"""Text, lesser text and lines, on light and on dark."""
FASTER, SLOWER, NEUTRAL = "#3b78b5", "#d9792b", "#8b95a1"
"""Colours that are told apart in both schemes, and by people who tell red and green apart badly."""
PALETTE = (
    *("#4c78a8", "#e6862e", "#3f9b8f", "#b26fa3", "#8f7a3d", "#d45a5f"),
    *("#6fa8d6", "#7d8590", "#5a9e4b", "#9b6b4f", "#c9a227", "#6c63b5"),
)


def require(purpose: str) -> ModuleType:
    """Return the module vl_convert; `purpose`, such as "a report", begins the error.

    Raises:
        TunerError: it is not installed.
    """
    try:
        import vl_convert
    except ImportError as e:
        raise TunerError(
            f"{purpose} draws with vl-convert, which is not here ({e}): pip install 'triton-tuner[report]'"
        ) from e
    return vl_convert


def theme(*, dark: bool) -> dict[str, Any]:
    """Return Vega-Lite's `config` for every chart, in colours for a dark page or a light one."""
    ink, muted, grid = (pair[dark] for pair in (INK, MUTED, GRID))
    said = {"Font": FONT, "FontSize": 11, "Color": muted}
    text: Spec = {f"{part}{name}": value for part in ("label", "title") for name, value in said.items()}
    text["titleFontWeight"] = "normal"
    return {
        "background": "transparent",
        "font": FONT,
        "view": {"stroke": None},
        "axis": text | {"domain": False, "gridColor": grid, "tickColor": grid, "labelOverlap": True},
        "legend": text | {"title": None, "orient": "top", "symbolSize": 70, "labelLimit": 200},
        "header": {"labelFont": FONT, "labelColor": muted, "labelFontSize": 11, "title": None},
        "title": {"font": FONT, "color": ink, "fontSize": 13, "fontWeight": 600, "anchor": "start"}
        | {"subtitleFont": FONT, "subtitleColor": muted},
        "text": {"font": FONT, "fontSize": 11, "color": muted},
        "rule": {"color": muted},
        "style": {"ink": {"color": ink, "fill": ink, "stroke": ink}},
        "range": {"category": list(PALETTE)},
    }


def bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which defines `vegaEmbed` and may stand in a page."""
    script = require("a report").javascript_bundle()
    assert isinstance(script, str)
    return script.replace("</script", "<\\/script")


def png(spec: Spec) -> bytes:
    """Draw a chart on white and return the PNG file's bytes, two pixels for each of Vega-Lite's.

    Raises:
        TunerError: vl-convert is not installed.
    """
    config = theme(dark=False) | {"background": "white", "padding": 12}
    picture = require("a chart").vegalite_to_png({"$schema": SCHEMA, **spec}, config=config, scale=2)
    assert isinstance(picture, bytes)
    return picture
