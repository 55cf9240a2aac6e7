"""Whether a module is still as it was when its forward was tried: its attributes, its hooks, its training flag."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

Held = tuple[tuple[str, object], ...]
"""Values of a module's attributes, by name: numbers, words, functions, configs."""
Children = tuple[tuple[str, "nn.Module | None", Held], ...]
"""Children of a module by name, with the values that they held."""
_GONE: Any = object()
_PLAIN = (int, float, str)


def held(module: nn.Module) -> Held:
    """The values that a module's forward may read."""
    return tuple(
        (name, value) for name, value in module.__dict__.items() if not name.startswith("_") and name != "training"
    )


def children(named: Iterable[tuple[str, nn.Module | None]]) -> Children:
    """Modules by name, with the values that they hold."""
    return tuple((name, each, () if each is None else held(each)) for name, each in named)


def holds(module: nn.Module, values: Held) -> bool:
    """Whether a module's attributes are still those that it was tried with."""
    attributes = module.__dict__
    if "forward" in attributes:
        return False
    for name, value in values:
        found = attributes.get(name, _GONE)
        # A pickle makes new numbers and words.
        if found is not value and not (type(value) in _PLAIN and type(found) is type(value) and found == value):
            return False
    return True


def are_as_tried(module: nn.Module, tried: Children, *, in_training: bool) -> bool:
    """Whether a module's children do what they did as it was tried; values that hooks would see are not computed.

    Args:
        module: Whose children they are.
        tried: What they were.
        in_training: Whether they compute the same while they train.
    """
    modules = module._modules
    for name, other, values in tried:
        if modules.get(name) is not other:
            return False
        if other is None:
            continue
        if other._forward_hooks or other._forward_pre_hooks or (other.training and not in_training):
            return False
        if not holds(other, values):
            return False
    return True
