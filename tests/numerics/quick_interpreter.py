"""Triton's interpreter, computing the same sooner: of itself it repeats at every operation what never changes."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import pytest
from triton import language
from triton.language import core
from triton.language.core import is_builtin
from triton.language.semantic import TritonSemantic
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
    patch.setattr(interpreter, "_patch_attr", _patch_attr)
    patch.setattr(core, "_unwrap_if_constexpr", _unless_plain(core._unwrap_if_constexpr))
    patch.setattr(core.tensor, "__init__", _as_the_first_of_its_type(core.tensor.__init__))
    patch.setattr(core.block_type, "__init__", _as_the_first_of_its_shape(core.block_type.__init__))
    patch.setattr(core.block_type, "with_element_ty", _once_of_each_element(core.block_type.with_element_ty))
    patch.setattr(core.block_type, "to_ir", _once_translated(core.block_type.to_ir))
    patch.setattr(TritonSemantic, "computation_type_impl", _once_decided(TritonSemantic.computation_type_impl))
    patch.setattr(TritonSemantic, "broadcast_impl_value", _unless_alike(TritonSemantic.broadcast_impl_value))


def _patch_attr(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Give a builtin the semantics without a second dict of its arguments, nor ask whether it has them."""
    checks = getattr(member, "__code__", None) is core.to_tensor.__code__  # of the wrapper that asks
    run = member.__wrapped__ if checks else member

    def with_semantic(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = interpreter.interpreter_semantic
        return run(*args, **kwargs)

    scope.set_attr(owner, name, with_semantic)


def _unless_plain(unwrap: Any) -> Any:
    """Most of what is unwrapped is of a type that wraps nothing."""
    plain = frozenset({bool, float, int, str, type(None), core.block_type, core.dtype, core.pointer_type, core.tensor})

    def unwrap_if_constexpr(value: Any) -> Any:
        return value if type(value) in plain else unwrap(value)

    return unwrap_if_constexpr


def _as_the_first_of_its_type(init: Any) -> Any:
    """A tensor's attributes follow from its type, all but the handle."""

    def init_tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002  as Triton calls it
        known = type.__dict__.get("_of_its_tensors")
        if known is None:
            init(self, None, type)
            known = type.__dict__["_of_its_tensors"] = dict(self.__dict__)
        self.__dict__.update(known)
        self.handle = handle

    return init_tensor


def _as_the_first_of_its_shape(init: Any) -> Any:
    """A block's type has the attributes of the first with its element and shape, which was checked."""
    firsts: dict[Any, Any] = {}

    def init_type(self: Any, element_ty: Any, shape: Any) -> None:
        extents = (*shape,)
        if any(type(extent) is not int for extent in extents):
            init(self, element_ty, shape)
            return
        key = _name(element_ty), extents
        if first := firsts.get(key):
            self.__dict__.update(first.__dict__)
        else:
            init(self, element_ty, shape)
            firsts[key] = self

    return init_type


def _once_of_each_element(with_element_ty: Any) -> Any:
    def with_known(self: Any, scalar_ty: Any) -> Any:
        known = self.__dict__.setdefault("_with_element", {})
        name = _name(scalar_ty)
        if name not in known:
            known[name] = with_element_ty(self, scalar_ty)
        return known[name]

    return with_known


def _name(element: Any) -> Any:
    """What tells a type from others; those of pointers have no hash."""
    return (element.name, element.address_space) if element.is_ptr() else element.name


def _once_translated(to_ir: Any) -> Any:
    def to_known(self: Any, builder: Any) -> Any:
        known = self.__dict__.get("_ir")
        if known is None:
            known = self.__dict__["_ir"] = to_ir(self, builder)
        return known

    return to_known


def _once_decided(computation_type: Any) -> Any:
    known: dict[Any, Any] = {}

    def known_type(self: Any, a_ty: Any, a_is_scalar: bool, b_ty: Any, b_is_scalar: bool, div_or_mod: bool) -> Any:
        asked = a_ty.name, a_is_scalar, b_ty.name, b_is_scalar, div_or_mod
        if asked not in known:
            known[asked] = computation_type(self, a_ty, a_is_scalar, b_ty, b_is_scalar, div_or_mod)
        return known[asked]

    return known_type


def _unless_alike(broadcast: Any) -> Any:
    """Neither of two scalars is broadcast, nor of two blocks of one shape."""

    def broadcast_unless_alike(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.type, rhs.type
        if left.is_block():
            alike = right.is_block() and left.shape.values == right.shape.values
        else:
            alike = not right.is_block()
        return (lhs, rhs) if alike else broadcast(self, lhs, rhs)

    return broadcast_unless_alike


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
