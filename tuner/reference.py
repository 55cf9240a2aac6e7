"""References to objects in modules: "package.module:name", or "path/of/file.py:name" outside any package."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tuner import files
from tuner.errors import KernelError, UsageError

NAMELESS = "_tuned_"
"""How a file's name as a module begins where its own name is not free: another process imports it by its path."""


def load(reference: str) -> Any:
    """Import the object that a reference names.

    A file is imported once, under its own name where that is free, without running what stands under
    `if __name__ == "__main__":`.

    Raises:
        UsageError: the text is no reference, or there is no such module or name.
        KernelError: there is no such file, or the module raised an error or tried to end the process.
    """
    where, mark, name = reference.rpartition(":")
    if not (mark and where and name):
        raise UsageError(f"{reference!r} is no reference: expected package.module:name or path/of/file.py:name")
    found: Any = _file(where) if where.endswith(".py") else _module(where)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{where} has no {name!r}: expected the name of a kernel in it")
        found = getattr(found, part)
    return found


def is_importable(reference: str) -> bool:
    """Return whether another process can import what a reference names: nothing of a function or a notebook."""
    where, _, name = reference.rpartition(":")
    return where not in ("__main__", "__mp_main__", "<stdin>") and "<locals>" not in name


@contextlib.contextmanager
def _importing(where: str) -> Iterator[None]:
    """Say of whatever a module raises as it is imported where that was."""
    try:
        with _exit_raises():
            yield
    except SystemExit as e:
        raise KernelError(
            f"{where} cannot be imported: it ends the process ({e!r}): put what does so under "
            'if __name__ == "__main__":'
        ) from e
    except (Exception, KeyboardInterrupt) as e:
        # A user's module may raise anything; --debug shows where. The command line knows whether Ctrl-C was pressed.
        said = f"{where} cannot be imported: {type(e).__name__}: {e}".rstrip(": ")
        if isinstance(e, ImportError) and "relative import" in str(e):
            said += ": name it as a module, my_pkg.my_module:NAME, from the folder that my_pkg is in"
        raise KernelError(said) from e


@contextlib.contextmanager
def _exit_raises() -> Iterator[None]:
    """Have `os._exit` raise SystemExit, because it would end this process without a word; not in forks of it."""
    leave, ours = os._exit, os.getpid()

    def refuse(status: int) -> None:
        if os.getpid() != ours:
            leave(status)
        raise SystemExit(status)

    os._exit = refuse  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = leave


def _module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does; a console script starts with its own folder instead
    with _importing(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as e:
            if e.name is None or not (name == e.name or name.startswith(f"{e.name}.")):
                raise
    raise UsageError(f"there is no module {name!r}: run from its folder, or install its package")


def _file(where: str) -> ModuleType:
    files.check_regular(Path(where), "Python file", error=KernelError)
    path = Path(where).resolve()
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == str(path) and module.__name__ != "__main__":
            return module
    if not path.exists():
        raise KernelError(f"there is no file {path}: expected path/of/file.py:name, from the current folder or from /")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # as `python file.py` does, so that it can import its neighbours
    name = path.stem if _is_free(path) else f"{NAMELESS}{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        with _importing(where):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_free(path: Path) -> bool:
    """Return whether a file's own name is free for its module, so that another process imports it by that."""
    if "." in path.stem or path.stem in sys.modules:  # a name with a dot is looked for in a package
        return False
    importlib.invalidate_caches()  # the file may be new
    found = importlib.util.find_spec(path.stem)
    return found is not None and found.origin is not None and Path(found.origin).resolve() == path
