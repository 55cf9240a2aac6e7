"""Tune Triton kernels once per GPU model, offline; look their configs up at run time."""

from __future__ import annotations

from tuner.config import Config
from tuner.errors import TunerError
from tuner.problem import Problem
from tuner.runtime.explain import explain
from tuner.runtime.lookup import Match, lookup, record_misses, use
from tuner.runtime.tally import flush as flush_misses

__all__ = ["Config", "Match", "Problem", "TunerError", "explain", "flush_misses", "lookup", "record_misses", "use"]
__version__ = "0.1.0"
