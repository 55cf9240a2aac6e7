"""Python runs this as it starts under `tuner capture`: torch is made to record its matrix products once it is imported.

With `--adopt`, Triton's autotuner records the calls of kernels as well.
The program is to notice nothing: its path is as it was, its own sitecustomize runs, and modules of triton-tuner, which
need not be installed in its environment unless kernels are adopted, are loaded from their files and not into
`sys.modules`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import util
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(__file__)  # noqa: PTH120  pathlib takes 10 ms to import, in each Python of a program


class _Loader:
    """Loads a module as its own loader does, and then starts to record."""

    def __init__(self, own: Any, finder: _Finder) -> None:
        self._own = own
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._own.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        sys.meta_path[:] = [each for each in sys.meta_path if each is not self._finder]
        self._own.exec_module(module)
        self._finder.start()


class _Finder:
    """Finds a module by the other finders. Looking for it is not importing it, so the finder stays until then."""

    def __init__(self, module: str, start: Callable[[], None]) -> None:
        self._module = module
        self.start = start

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        others = (each for each in sys.meta_path if each is not self and hasattr(each, "find_spec"))
        spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
        return spec


def _record_products() -> None:
    _load("recorder").start(os.environ["TUNER_CAPTURE"], _load("products"))


def _record_kernels() -> None:
    """Record the calls of adopted kernels; of whatever goes wrong, one line is all that the program notices."""
    try:
        from tuner.adopt.capture import from_environment

        from_environment()
    except Exception as e:  # noqa: BLE001
        sys.stderr.write(f"tuner capture: no kernel is recorded in process {os.getpid()}: {type(e).__name__}: {e}\n")


def _load(name: str) -> Any:
    spec = util.spec_from_file_location(name, os.path.join(os.path.dirname(_HERE), f"{name}.py"))  # noqa: PTH118, PTH120
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
    sys.meta_path.insert(0, _Finder("torch", _record_products))
    if os.environ.get("TUNER_ADOPT"):
        sys.meta_path.insert(0, _Finder("triton", _record_kernels))
_run_next()
