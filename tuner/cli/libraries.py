"""Libraries that a command names: whether a program will find them."""

from __future__ import annotations

import difflib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from tuner.errors import UsageError


def absent(library: str, command: Sequence[str], done: str) -> str | None:
    """Return what to say of a library that is not found here, nor where a program lies; None of one that is.

    The program may still find it, by a path of its own.

    Args:
        library: the name of a package or module.
        command: what is typed to run the program.
        done: what becomes of nothing without the library: "served" or "recorded".

    Raises:
        UsageError: no program can import it.
    """
    if not all(part.isidentifier() for part in library.split(".")):
        raise UsageError(f"--adopt {library!r:.60} is no name of a package: expected it as it is imported, such as fla")
    root = library.partition(".")[0]
    if root in sys.modules or importlib.util.find_spec(root):
        return None
    # Path.is_file() raises where a word is too long for a name, as a program behind -c may be.
    path = [*sys.path, "", *(str(Path(word).parent) for word in command if os.path.isfile(word))]  # noqa: PTH113
    if PathFinder.find_spec(root, path):
        return None
    installed = {each.name for each in pkgutil.iter_modules(path)} - sys.stdlib_module_names
    near = difflib.get_close_matches(root, installed, n=1)
    instead = f"--adopt {near[0]}, perhaps" if near else "name it as it is imported, such as --adopt fla"
    return f"no library {root!r:.60} is found here, and without it nothing of it is {done}: {instead}"
