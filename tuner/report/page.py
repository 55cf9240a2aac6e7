"""The page: one HTML file with its data, its charts and all the code that draws them; it loads nothing else."""

from __future__ import annotations

import importlib.resources
import json
import re
from typing import Any

from tuner.report import vega
from tuner.report.charts import charts


def page(document: dict[str, Any]) -> str:
    """Return a report's HTML; the same document gives the same text.

    Args:
        document: what `tuner.report.document` returns.

    Raises:
        TunerError: vl-convert is not installed.
    """
    folder = importlib.resources.files("tuner.report") / "page"
    names = ("page.html", "page.css", "draw.js", "page.js")
    parts = {name: (folder / name).read_text(encoding="utf-8") for name in names}
    drawn = {"charts": charts(document["kernels"]), "light": vega.theme(dark=False), "dark": vega.theme(dark=True)}
    filled = {
        "css": parts["page.css"],
        "vega": vega.bundle(),
        "draw": parts["draw.js"],
        "page": parts["page.js"],
        "charts": as_script(drawn),
        "data": as_script(document),
    }
    return re.sub(r"/\*(\w+)\*/", lambda place: filled[place[1]], parts["page.html"])


def as_script(value: Any) -> str:
    """Return JSON that may stand in a script element: no text of a database can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
