"""The portfolio: a few configs of each architecture that between them are close to the best on recorded problems.

`portfolio.json` is data with its provenance, made by benchmarks/fit/portfolio.py. They are candidates and nothing more.
"""

from __future__ import annotations

import functools
import importlib.resources
import json

from tuner.kernel.config import Config


@functools.cache
def configs(arch: str) -> tuple[Config, ...]:
    """The portfolio of an architecture, the config that covers most first; empty where nothing was recorded."""
    document = json.loads((importlib.resources.files("tuner.sweep") / "portfolio.json").read_text(encoding="utf-8"))
    listed = document["architectures"].get(arch, [])
    return tuple(Config(entry["kernel"], **entry["parameters"]) for entry in listed)
