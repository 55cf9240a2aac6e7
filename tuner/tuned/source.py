"""A kernel's source as a hash: of what it computes with all that it calls, not of how or where that is written.

Comments, docstrings, formatting, decorators and the place in a file do not count. What counts is the syntax tree, the
functions that it calls, recursively and in other modules too, and the constants that it reads. Triton's own `cache_key`
also holds line numbers, and the sources of Triton's library, which the environment of a row records already.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from types import CodeType, FunctionType, ModuleType
from typing import Any

_LIBRARIES = ("triton", "torch", "builtins", "math")
"""Packages whose functions count by name alone: their versions are recorded beside every trial."""
_PLAIN = (bool, int, float, complex, str, bytes)


def source_hash(function: Any) -> str:
    """Return the SHA-256 of a jit function's source, equal under all versions of Python and Triton."""
    return hashlib.sha256(_Reader().function(function).encode()).hexdigest()


class _Reader:
    """Describes functions, each once: a function that is called again, or calls itself, is named by its number."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def function(self, function: Any) -> str:
        """Describe a function by its syntax tree and by what its names stand for."""
        text, plain = getattr(function, "src", None), function
        while not inspect.isfunction(plain):
            plain = plain.fn
            text = text or getattr(
                plain, "src", None
            )  # what Triton read when it was decorated: the file may have changed
        if id(plain) in self._seen:
            return f"function {self._seen[id(plain)]}"
        self._seen[id(plain)] = len(self._seen)
        outer = _names_of(plain)
        try:
            tree = _tree(text if isinstance(text, str) else inspect.getsource(plain))
        except (OSError, SyntaxError):  # it was made by `exec`, and runs under the interpreter alone
            computed, names = _bytecode(plain.__code__), _names_in(plain.__code__)
            references = {n: value for n, value in outer.items() if n in names and not isinstance(value, ModuleType)}
        else:
            computed, references = _text(tree), _references(tree, outer)
        said = [f"{name}={self._value(value)}" for name, value in sorted(references.items())]
        return "\n".join([computed, *said])

    def _value(self, value: Any) -> str:
        if type(value).__name__ == "constexpr":
            value = value.value
        if value is None or isinstance(value, _PLAIN):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, (tuple, list)):
            return f"({','.join(map(self._value, value))})"
        if hasattr(value, "hash_attrs"):  # a class under Triton's `aggregate`: its methods and constants
            return f"aggregate {self._value(tuple(value.hash_attrs))}"
        if (plain := function_below(value)) is not None:
            return plain.__qualname__ if _is_library(plain.__module__) else self.function(value)
        if isinstance(value, Enum):
            return f"{type(value).__name__}.{value.name} {self._value(value.value)}"
        return str(value) if type(value).__name__ == "dtype" else type(value).__name__


def function_below(value: Any) -> FunctionType | None:
    """Return the plain function below Triton's decorators; None for anything else."""
    while not inspect.isfunction(value):
        if isinstance(value, type) or not hasattr(value, "fn"):
            return None
        value = value.fn
    return value


def _is_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


def _names_of(function: FunctionType) -> Mapping[str, Any]:
    """Return what the names of a function stand for outside of it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    found = dict(function.__globals__)
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _bytecode(code: CodeType) -> str:
    constants = [_bytecode(each) if isinstance(each, CodeType) else _constant(each) for each in code.co_consts]
    return f"bytecode {code.co_code.hex()} {code.co_names} {constants}"


def _constant(value: Any) -> str:
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _names_in(code: CodeType) -> set[str]:
    inner = [_names_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*inner)


def _references(tree: ast.AST, outer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a function refers to outside of itself, by the text of the reference: `BLOCK`, `library.scale`."""
    local = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    local |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    found: dict[str, Any] = {}
    for root, path in _chains(tree):
        if root in local or root not in outer:
            continue
        name, value = root, outer[root]
        if isinstance(value, ModuleType) and _is_library(value.__name__):
            continue
        for part in path:
            if not isinstance(value, (ModuleType, type)) or not hasattr(value, part):
                break
            name, value = f"{name}.{part}", getattr(value, part)
        if not isinstance(value, ModuleType):
            found[name] = value
    return found


def _chains(node: ast.AST, path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Return the names below a node, each with the attributes that are read of it."""
    if isinstance(node, ast.Name):
        yield node.id, path
    elif isinstance(node, ast.Attribute):
        yield from _chains(node.value, (node.attr, *path))
    else:
        for child in ast.iter_child_nodes(node):
            yield from _chains(child)


def _tree(source: str) -> ast.AST:
    tree = next(
        node
        for node in ast.walk(ast.parse(textwrap.dedent(source)))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    )
    if not isinstance(tree, ast.Lambda):
        tree.decorator_list = []
        if ast.get_docstring(tree, clean=False) is not None:
            tree.body = tree.body[1:]
    return tree


def _text(node: Any) -> str:
    # `ast.dump` differs between versions of Python, which add fields: an empty field is left out.
    if isinstance(node, ast.Constant):
        return f"{type(node.value).__name__} {node.value!r}"
    if isinstance(node, ast.AST):
        fields = [(name, getattr(node, name, None)) for name in sorted(node._fields)]
        said = [f"{name}={_text(value)}" for name, value in fields if value is not None and value != []]
        return f"{type(node).__name__}({','.join(said)})"
    return f"[{','.join(map(_text, node))}]" if isinstance(node, list) else str(node)
