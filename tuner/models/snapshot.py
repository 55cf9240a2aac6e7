"""What a module's forward may read, kept to tell later whether it still computes what it did when it was tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn

from tuner.launch import compat

GLOBAL_HOOKS = (compat.global_forward_hooks, compat.global_forward_pre_hooks)
"""The hooks of all modules: where one of these is not empty, a kernel would not run what every layer is to run."""


class Attributes(NamedTuple):
    """A module's attributes by name.

    Attributes:
        others: Floats, strings, functions, configs.
        integers: Apart, because torch.compile compiles what reads one anew for each value, and one is a layer's index.
    """

    others: tuple[tuple[str, object], ...]
    integers: tuple[tuple[str, object], ...]


Children = tuple[tuple[str, "nn.Module | None", Attributes], ...]
"""A module's children by name, each with its attributes."""
_NONE = Attributes((), ())
_MISSING: Any = object()
_PLAIN = (int, float, str)


def attributes_of(module: nn.Module) -> Attributes:
    """The attributes that a module's forward may read."""
    found = [
        (name, value) for name, value in module.__dict__.items() if not name.startswith("_") and name != "training"
    ]
    return Attributes(
        tuple(each for each in found if type(each[1]) is not int), tuple(each for each in found if type(each[1]) is int)
    )


def children_of(modules: Iterable[tuple[str, nn.Module | None]]) -> Children:
    """Modules by name, with their attributes."""
    return tuple((name, each, _NONE if each is None else attributes_of(each)) for name, each in modules)


def is_unchanged(module: nn.Module, attributes: Attributes, *, with_integers: bool = True) -> bool:
    """Whether a module still has these attributes, and no forward of its own among them."""
    now = module.__dict__
    if "forward" in now or not _are_there(now, attributes.others):
        return False
    return not with_integers or _are_there(now, attributes.integers)


def _are_there(now: Mapping[str, object], attributes: tuple[tuple[str, object], ...]) -> bool:
    for name, before in attributes:
        value = now.get(name, _MISSING)
        # Loaded from a pickle, equal numbers and strings are other objects.
        if value is not before and not (type(before) in _PLAIN and type(value) is type(before) and value == before):
            return False
    return True


def children_unchanged(module: nn.Module, children: Children, *, in_training: bool, with_integers: bool = True) -> bool:
    """Whether a module still has these children, with these attributes and without hooks, which a kernel would not run.

    Args:
        module: Whose children they are.
        children: What they were when the module was tried.
        in_training: Whether they compute the same while they train.
        with_integers: Whether integers among their attributes count.
    """
    modules = module._modules
    for name, child, attributes in children:
        if modules.get(name) is not child:
            return False
        if child is None:
            continue
        if child._forward_hooks or child._forward_pre_hooks or (child.training and not in_training):
            return False
        if not is_unchanged(child, attributes, with_integers=with_integers):
            return False
    return True
