"""Python runs this as it starts under `tuner capture` and `tuner exec`, in every process of a program.

The program is to notice nothing: its path is as it was and its own sitecustomize runs. Recording matrix products needs
no triton-tuner in the program's environment: its modules are loaded from their files and not into `sys.modules`. What
serves kernels imports triton-tuner, once Triton is imported.
"""

from __future__ import annotations

import os
import sys
from importlib import util
from importlib.machinery import PathFinder
from typing import Any

_HERE = os.path.dirname(__file__)  # noqa: PTH120  pathlib takes 10 ms to import, in each Python of a program


def _record() -> None:
    _load("models", "recorder").start(os.environ["TUNER_CAPTURE"], _load("models", "products"))


def _adopt() -> None:
    """Import triton-tuner, which adopts what `$TUNER_ADOPT` names; the program goes on without it."""
    try:
        import tuner  # noqa: F401
    except Exception as e:  # noqa: BLE001  whatever is wrong with it is no matter of the program's
        sys.stderr.write(f"tuner: no kernel is adopted: {type(e).__name__}: {e}: install triton-tuner where it runs\n")


def _load(room: str, name: str) -> Any:
    spec = util.spec_from_file_location(name, os.path.join(os.path.dirname(_HERE), room, f"{name}.py"))  # noqa: PTH118, PTH120
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_next() -> None:
    """Run the sitecustomize that Python would have found."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.path[:] = [each for each in sys.path if each != _HERE]
if "TUNER_CAPTURE" in os.environ:
    _load("startup", "after_import").after_import("torch", _record)
if os.environ.get("TUNER_ADOPT"):
    _load("startup", "after_import").after_import("triton", _adopt)
_run_next()
