"""How every chart looks: one Vega-Lite configuration for a light page and one for a dark page."""

from __future__ import annotations

from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK, MUTED, GRID = ("#1f2933", "#e4e7eb"), ("#5c6773", "#9aa5b1"), ("#e4e7eb", "#2f3a46")
"""Text, lesser text and lines, on light and on dark."""
FASTER, SLOWER, NEUTRAL = "#3b78b5", "#d9792b", "#8b95a1"
"""Colours that are told apart in both schemes, and by people who tell red and green apart badly."""
PALETTE = (
    *("#4c78a8", "#e6862e", "#3f9b8f", "#b26fa3", "#8f7a3d", "#d45a5f"),
    *("#6fa8d6", "#7d8590", "#5a9e4b", "#9b6b4f", "#c9a227", "#6c63b5"),
)


def theme(*, dark: bool) -> dict[str, Any]:
    """Return the configuration of all charts."""
    ink, muted, grid = (pair[dark] for pair in (INK, MUTED, GRID))
    text = {
        "labelFont": FONT,
        "labelFontSize": 11,
        "labelColor": muted,
        "titleFont": FONT,
        "titleFontSize": 11,
        "titleColor": muted,
        "titleFontWeight": "normal",
    }
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
