"""Where another process imports a kernel from, with the `make_inputs` that goes with it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import FunctionType, ModuleType
from typing import Any

from tuner import reference


def origin_of(kernel: Any, base: FunctionType, modules: Iterable[str | None]) -> str:
    """Return a reference to a kernel: "package.module:name", or "path/of/script.py:name".

    It is the plain function's own module and name, unless what belongs to the kernel stands in another module. Then it
    is the name that the kernel has there, because importing the function's module would not run that one. `modules` are
    those of `make_inputs` and `reference`, and where the decorator was applied; `base` is the plain function below all
    decorators.
    """
    nested = "<locals>" in base.__qualname__
    for name in dict.fromkeys([*modules, base.__module__]):
        module = sys.modules.get(name or "")
        if module is None or (name == base.__module__ and not nested):
            continue
        if (found := _name_in(module, kernel)) is not None:
            return f"{_importable(module.__name__, vars(module))}:{found}"
    return f"{_importable(base.__module__, base.__globals__)}:{base.__qualname__}"


def _importable(module: str, names: Mapping[str, Any]) -> str:
    """Return how another process imports a module of these globals.

    Under a debugger or a profiler those of a script are not what `sys.modules` has, or lack some of what it has.
    """
    is_main, spec = module in ("__main__", "__mp_main__"), names.get("__spec__")
    if is_main and names.get("__package__") and spec is not None:
        return str(spec.name)  # of `python -m package.script`, whose imports may be relative to its package
    if is_main or module.startswith(reference.NAMELESS):
        return names.get("__file__") or module
    return module


def _name_in(module: ModuleType, kernel: Any) -> str | None:
    """Return the name of a kernel in a module, or in a module that it imported: "kernel", "library.kernel"."""
    held = list(vars(module).items())
    for name, value in held:
        if _is(value, kernel):
            return name
    for outer, inner in held:
        if isinstance(inner, ModuleType):
            for name, value in list(vars(inner).items()):
                if _is(value, kernel):
                    return f"{outer}.{name}"
    return None


def _is(value: Any, kernel: Any) -> bool:
    while value is not kernel and type(value).__name__ == "Heuristics":
        value = value.fn
    return value is kernel
