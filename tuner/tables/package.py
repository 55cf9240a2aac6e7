"""Tables as data of a Python package: what a library ships, and what it must declare for lookups to find them."""

from __future__ import annotations

import keyword
from pathlib import Path

from tuner import files
from tuner.errors import TableError, UsageError
from tuner.lookup.sources import GROUP

DOCSTRING = '"""Tuned configs, found by triton-tuner through the entry point group `{group}`. Holds no code."""\n'


def prepare(root: Path, name: str) -> Path:
    """Make sure that a package is there for tables to be written into; returns its folder.

    A folder that is made gets an `__init__.py`. Of those that exist only the last gets one, where it has none. The root
    is the top of a project, or its `src`.
    """
    check_name(name)
    _check_free(root, name)
    folder = root
    files.make_folder(root)
    for part in name.split("."):
        folder /= part
        made = not folder.exists()
        files.make_folder(folder)
        if made:
            _write_init(folder)
    _write_init(folder)
    return folder


def _check_free(root: Path, name: str) -> None:
    """Refuse, by a UsageError, a package whose folder would hide a module of the same name."""
    folder = root
    for part in name.split("."):
        module, folder = folder / f"{part}.py", folder / part
        if module.exists() and not (folder / "__init__.py").exists():
            raise UsageError(f"{module} is a module, which a package {name} would hide: name another, {part}_tuned say")


def check_name(name: str) -> None:
    """Refuse, by a UsageError, a name that cannot be imported or that lies inside triton-tuner's own package."""
    parts = name.split(".")
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise UsageError(f"{name!r} is not an import name: expected for instance mylib.tuned")
    if parts[0] == "tuner":
        raise UsageError(f"{name!r} lies inside triton-tuner: name a package of your own, for instance mylib.tuned")


def pyproject_lines(name: str, *, with_kernels: bool = False) -> str:
    """What to add to pyproject.toml so that the tables, and kernels, are found and are in the wheel (setuptools)."""
    data = '["*.json", "*.kernels/*"]' if with_kernels else '["*.json"]'
    return (
        f'[project.entry-points."{GROUP}"]\n'
        f'{name.partition(".")[0]} = "{name}"\n'
        "\n"
        "[tool.setuptools.package-data]\n"
        f'"{name}" = {data}'
    )


def _write_init(folder: Path) -> None:
    path = folder / "__init__.py"
    if not path.exists():
        files.write_text(path, DOCSTRING.format(group=GROUP), error=TableError)
