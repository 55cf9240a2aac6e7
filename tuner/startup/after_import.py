"""Calls a function as soon as a module has been imported, whoever imports it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def after_import(name: str, act: Callable[[], Any]) -> None:
    """Call `act` once, when the module has been executed that is then found under this name."""
    sys.meta_path.insert(0, _Finder(name, act))


class _Loader:
    """Loads a module as its own loader does, and then acts."""

    def __init__(self, own: Any, finder: _Finder) -> None:
        self._own, self._finder = own, finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._own.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._finder.is_done = True
        # Another list, because another thread may be going through this one.
        sys.meta_path = [each for each in sys.meta_path if each is not self._finder]
        self._own.exec_module(module)
        self._finder.act()


class _Finder:
    """Finds a module by the other finders. Looking for it is not importing it, so the finder stays until then."""

    def __init__(self, name: str, act: Callable[[], Any]) -> None:
        self._name, self.act, self.is_done = name, act, False

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._name or self.is_done:
            return None
        # Those behind this one: another of its kind before it would ask it again.
        finders = list(sys.meta_path)
        behind = finders[finders.index(self) + 1 :] if self in finders else finders
        others = (each for each in behind if hasattr(each, "find_spec"))
        spec = next(filter(None, (each.find_spec(name, path, target) for each in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
        return spec
