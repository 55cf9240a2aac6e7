"""A package's files, found without running any of its code: a lookup must not import the package."""

from __future__ import annotations

import importlib.resources
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

from tuner.errors import TableError

if TYPE_CHECKING:
    from importlib.abc import Traversable


def folder(name: str, group: str) -> Traversable:
    """The folder of an installed package, which an entry point of a group names.

    Raises:
        TableError: there is no such package, or its files cannot be read.
    """
    try:
        spec = _spec_of(name)
        if spec is None:
            raise TableError(f"entry point of {group} names {name!r}: there is no such package")
        return importlib.resources.files(importlib.util.module_from_spec(spec))
    except (AttributeError, ImportError, OSError, TypeError, ValueError) as e:  # loaders differ in what they can do
        raise TableError(f"entry point of {group} names {name!r}, whose files cannot be read: {e}") from e


def _spec_of(name: str) -> ModuleSpec | None:
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        try:
            spec = _find_spec(".".join(parts[:depth]), spec)
        except KeyError:  # a namespace inside a package asks for that package in sys.modules: it must be imported
            return importlib.util.find_spec(name)
        if spec is None:
            return None
    return spec


def _find_spec(name: str, parent: ModuleSpec | None) -> ModuleSpec | None:
    path = None if parent is None else parent.submodule_search_locations
    found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in found if spec is not None), None)
