"""What a module's forward may read, kept to tell later whether it still computes what it did when it was tried."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from torch import nn

from tuner.launch import compat

GLOBAL_HOOKS = (compat.global_forward_hooks, compat.global_forward_pre_hooks)
"""The hooks of all modules: where one of these is not empty, a kernel would not run what every layer is to run."""
Attributes = tuple[tuple[str, object], ...]
"""A module's attributes by name: numbers, strings, functions, configs."""
Children = tuple[tuple[str, "nn.Module | None", Attributes], ...]
"""A module's children by name, each with its attributes."""
_MISSING: Any = object()
_PLAIN = (int, float, str)


def attributes_of(module: nn.Module, unread: Collection[str] = ()) -> Attributes:
    """The attributes that a module's forward may read, but those of some names."""
    return tuple(
        (name, value)
        for name, value in module.__dict__.items()
        if not name.startswith("_") and name != "training" and name not in unread
    )


def children_of(modules: Iterable[tuple[str, nn.Module | None]], unread: Collection[str] = ()) -> Children:
    """Modules by name, with their attributes, but those of some names."""
    return tuple((name, each, () if each is None else attributes_of(each, unread)) for name, each in modules)


def is_unchanged(module: nn.Module, attributes: Attributes) -> bool:
    """Whether a module still has these attributes, and no forward of its own among them."""
    now = module.__dict__
    if "forward" in now:
        return False
    for name, before in attributes:
        value = now.get(name, _MISSING)
        # Loaded from a pickle, equal numbers and strings are other objects.
        if value is not before and not (type(before) in _PLAIN and type(value) is type(before) and value == before):
            return False
    return True


def children_unchanged(module: nn.Module, children: Children, *, in_training: bool) -> bool:
    """Whether a module still has these children, with these attributes and without hooks, which a kernel would not run.

    Args:
        module: Whose children they are.
        children: What they were when the module was tried.
        in_training: Whether they compute the same while they train.
    """
    modules = module._modules
    for name, child, attributes in children:
        if modules.get(name) is not child:
            return False
        if child is None:
            continue
        if child._forward_hooks or child._forward_pre_hooks or (child.training and not in_training):
            return False
        if not is_unchanged(child, attributes):
            return False
    return True
