"""Triton's interpreter, computing the same sooner: of itself it repeats at every operation what never changes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import pytest
from triton import language
from triton.language.core import is_builtin
from triton.runtime import interpreter


def quicken(patch: pytest.MonkeyPatch) -> None:
    """Have what never changes found once, and leave out checks of overflow, whose outcome nothing reads.

    These are what a profile of test_fused_experts.py shows first under Triton 3.7.1.
    """
    options = interpreter.interpreter_builder.options
    if not options.debug:  # else the checks do assert
        patch.setattr(interpreter.interpreter_builder, "options", dataclasses.replace(options, sanitize_overflow=False))
    patch.setattr(interpreter, "_get_np_dtype", _numpy_dtypes(interpreter._get_np_dtype))
    patch.setattr(interpreter, "_patch_builtin", _once_looked_up())
    patch.setattr(interpreter, "_patch_lang", _Patched(interpreter._patch_lang))


def _numpy_dtypes(of: Any) -> Any:
    known = functools.cache(of)

    def numpy_dtype(kind: Any) -> Any:
        element = kind.scalar
        return of(element) if element.is_ptr() else known(element)  # types of pointers have no hash

    return numpy_dtype


def _once_looked_up() -> Any:
    @functools.cache
    def names_of(package: Any) -> list[str]:
        return [name for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch_builtin(package: Any, *rest: Any) -> None:
        for name in names_of(package):
            if is_builtin(member := getattr(package, name)):
                interpreter._patch_attr(package, name, member, *rest)

    return patch_builtin


class _Patched:
    """Triton's language as the interpreter patches it, from a kernel's launch to its end.

    A jitted function that the kernel calls has it patched again, once it has been, for nothing.
    """

    def __init__(self, patch_lang: Any) -> None:
        self._patch_lang = patch_lang
        self._in_force: set[frozenset[int]] = set()

    def __call__(self, fn: Any) -> Any:
        modules = _modules_of(fn)
        if modules in self._in_force:
            return _Nothing
        scope = self._patch_lang(fn)
        self._in_force.add(modules)
        restore = scope.restore

        def restore_all() -> None:
            self._in_force.clear()
            restore()

        scope.restore = restore_all
        return scope


@functools.cache
def _modules_of(fn: Any) -> frozenset[int]:
    """Which of the language's modules a function sees."""
    seen = {id(each) for each in fn.__globals__.values()}
    return frozenset(seen & {id(language), id(language.core)})


class _Nothing:
    @staticmethod
    def restore() -> None:
        """Nothing was patched."""
