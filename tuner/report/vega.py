"""Vega-Lite by `vl-convert-python`: its JavaScript for a page, and pictures of charts without a browser."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tuner.errors import TunerError
from tuner.report.theme import theme

Spec = dict[str, Any]
"""A chart in Vega-Lite."""
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"


def require(purpose: str) -> ModuleType:
    """Return vl-convert; `purpose` says in the error what it would have been for.

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


def bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which defines `vegaEmbed` and may stand in a page."""
    script = require("a report").javascript_bundle()
    assert isinstance(script, str)
    return script.replace("</script", "<\\/script")


def png(spec: Spec, *, scale: float = 2) -> bytes:
    """Draw a chart on white, as a PNG file."""
    config = theme(dark=False) | {"background": "white", "padding": 12}
    picture = require("a chart").vegalite_to_png({"$schema": SCHEMA, **spec}, config=config, scale=scale)
    assert isinstance(picture, bytes)
    return picture
