"""References to objects in modules: "package.module:name", or "path/of/file.py:name" outside any package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner import files
from tuner.errors import KernelError, TunerError, UsageError


def load(reference: str) -> Any:
    """Import the object that a reference names.

    A file is imported once, under its own name where that is free, without running what stands under
    `if __name__ == "__main__":`.

    Raises:
        UsageError: the text is no reference, or there is no such module or name.
        KernelError: the module raised an error.
    """
    where, mark, name = reference.rpartition(":")
    if not (mark and where and name):
        raise UsageError(f"{reference!r} is no reference: expected package.module:name or path/of/file.py:name")
    try:
        module = _file(where) if where.endswith(".py") else _module(where)
    except TunerError:
        raise
    except Exception as e:
        # A user's module may raise anything; --debug shows where.
        raise KernelError(f"{where} cannot be imported: {type(e).__name__}: {e}") from e
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{where} has no {name!r}: expected the name of a kernel in it")
        found = getattr(found, part)
    return found


def _module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does; a console script starts with its own folder instead
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        if e.name is None or not (name == e.name or name.startswith(f"{e.name}.")):
            raise
        raise UsageError(f"there is no module {name!r}: run from its folder, or install its package") from e


def _file(where: str) -> ModuleType:
    files.check_regular(Path(where), "Python file", error=UsageError)
    path = Path(where).resolve()
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path) and module.__name__ != "__main__":
            return module
    if not path.exists():
        raise UsageError(f"there is no file {path}")
    name = path.stem if path.stem not in sys.modules and path.stem.isidentifier() else f"_tuned_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as `python file.py` does, so that it can import its neighbours
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
