"""Tune Triton kernels once per GPU model, offline; look their configs up at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "Arguments",
    "Config",
    "Match",
    "Problem",
    "TunerError",
    "digest",
    "explain",
    "flush_misses",
    "lookup",
    "record_misses",
    "tuned",
    "use",
]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from tuner.config import Config
    from tuner.decorator.arguments import Arguments
    from tuner.decorator.tuned import tuned
    from tuner.errors import TunerError
    from tuner.problem import Problem
    from tuner.runtime.decision import Match
    from tuner.runtime.digest import digest
    from tuner.runtime.explain import explain
    from tuner.runtime.lookup import lookup, record_misses, use
    from tuner.runtime.tally import flush as flush_misses
else:
    import importlib

    _HOMES = {
        "Arguments": "tuner.decorator.arguments.Arguments",
        "Config": "tuner.config.Config",
        "Match": "tuner.runtime.decision.Match",
        "Problem": "tuner.problem.Problem",
        "TunerError": "tuner.errors.TunerError",
        "digest": "tuner.runtime.digest.digest",
        "explain": "tuner.runtime.explain.explain",
        "flush_misses": "tuner.runtime.tally.flush",
        "lookup": "tuner.runtime.lookup.lookup",
        "record_misses": "tuner.runtime.lookup.record_misses",
        "tuned": "tuner.decorator.tuned.tuned",
        "use": "tuner.runtime.lookup.use",
    }
    _MODULES = ("config", "device", "dtype", "errors", "kernel", "problem", "registry", "runtime", "space", "suite")

    def __getattr__(name: str) -> object:
        """A name of the face, or a module of the ground, imported when it is first asked for.

        A process that serves needs few of them. A type checker sees the imports above.
        """
        if name in _HOMES:
            home, _, its = _HOMES[name].rpartition(".")
            value = getattr(importlib.import_module(home), its)
        elif name in _MODULES:
            value = importlib.import_module(f"{__name__}.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, value)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})
