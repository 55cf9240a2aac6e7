"""Tune Triton kernels once per GPU model, offline; look their configs up at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.version import __version__ as __version__

__all__ = [
    "Arguments",
    "Config",
    "Match",
    "Problem",
    "TunerError",
    "adopt",
    "capture",
    "digest",
    "explain",
    "flush_misses",
    "lookup",
    "record_misses",
    "strict",
    "tuned",
    "use",
]
if TYPE_CHECKING:
    from tuner.adopt.adoption import adopt
    from tuner.adopt.capture import capture
    from tuner.errors import TunerError
    from tuner.kernel.config import Config
    from tuner.lookup.decision import Match
    from tuner.lookup.explain import explain
    from tuner.lookup.fingerprint import digest
    from tuner.lookup.lookup import lookup, record_misses, use
    from tuner.lookup.miss_counts import flush as flush_misses
    from tuner.lookup.strict import strict
    from tuner.problem import Problem
    from tuner.tuned.arguments import Arguments
    from tuner.tuned.decorator import tuned
else:
    import importlib
    import os
    import sys

    # Importing a package binds its name here. These are imported first and unbound again: `tuner.adopt`,
    # `tuner.lookup` and `tuner.tuned` are the functions of those names.
    for _room in ("adopt", "lookup", "tuned"):
        importlib.import_module(f"{__name__}.{_room}")
        del globals()[_room]

    _HOMES = {
        "Arguments": "tuner.tuned.arguments.Arguments",
        "Config": "tuner.kernel.config.Config",
        "Match": "tuner.lookup.decision.Match",
        "Problem": "tuner.problem.Problem",
        "TunerError": "tuner.errors.TunerError",
        "adopt": "tuner.adopt.adoption.adopt",
        "capture": "tuner.adopt.capture.capture",
        "digest": "tuner.lookup.fingerprint.digest",
        "explain": "tuner.lookup.explain.explain",
        "flush_misses": "tuner.lookup.miss_counts.flush",
        "lookup": "tuner.lookup.lookup.lookup",
        "record_misses": "tuner.lookup.lookup.record_misses",
        "strict": "tuner.lookup.strict.strict",
        "tuned": "tuner.tuned.decorator.tuned",
        "use": "tuner.lookup.lookup.use",
    }
    _MODULES = ("config", "device", "errors", "kernel", "models", "problem", "registry", "space", "suite")

    def __getattr__(name: str) -> object:
        """Import a public name or module when it is first used, because a serving process needs few of them."""
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

    def _adopt() -> None:
        try:
            importlib.import_module("tuner.adopt.adoption").from_environment()
        except (
            ImportError,
            AttributeError,
        ):  # a module of ours imports Triton right now, and is not complete until it has
            # Libraries are adopted once they are there. As they are imported, they may ask for the driver.
            importlib.import_module("tuner.launch.active_driver").lend("TUNER_ADOPT")
            for library in filter(None, os.environ.get("TUNER_ADOPT", "").split(",")):
                importlib.import_module("tuner.startup.after_import").after_import(
                    library.strip().split(".")[0], _adopt
                )

    # All that importing does, and only where somebody asked for it. With TUNER_CAPTURE calls are captured, not served.
    if os.environ.get("TUNER_ADOPT"):
        if hasattr(sys.modules.get("triton"), "autotune"):
            _adopt()
        else:
            importlib.import_module("tuner.startup.after_import").after_import("triton", _adopt)
