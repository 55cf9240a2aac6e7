"""Replaces the forward of a layer by giving the layer a subclass of its own class, and undoes that."""

from __future__ import annotations

from typing import Any

from torch import nn

CHOICE = "_tuner_choice"
"""The attribute of a patched layer that says how its forward is to serve it."""


class PatchedLayer(nn.Module):  # type: ignore[misc]  # torch is not checked
    """The base of classes that replace a layer's forward and nothing else."""

    PREFIX: str

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy and pickle a layer by its original class, because a patched class has no name to import."""
        if not is_patched(self):  # of a subclass that something else made later
            own: tuple[Any, ...] = super().__reduce_ex__(protocol)
            return own
        _, _, *rest = super().__reduce_ex__(protocol)
        return _new_layer, _origins[type(self)], *rest


_Origin = tuple[type[PatchedLayer], Any]
"""What a patched class is made of: the class whose forward it has, and the layer's original class."""
_patched_classes: dict[_Origin, Any] = {}
_origins: dict[Any, _Origin] = {}


def patch_class(layer: nn.Module, kind: type[PatchedLayer], choice: object) -> None:
    """Give a layer the forward of `kind`, also where it is patched already."""
    layer.__class__ = _patched_class(kind, original_class(layer))
    layer.__dict__[CHOICE] = choice


def restore_class(layer: nn.Module) -> bool:
    """Give a layer its original forward back, and its class unless something made a subclass of it since.

    Returns:
        Whether it was patched.
    """
    if CHOICE not in layer.__dict__:
        return False
    layer.__class__ = original_class(layer)
    del layer.__dict__[CHOICE]
    return True


def original_class(layer: nn.Module) -> Any:
    """The class that a layer had before it was patched; the class of any other layer."""
    return _origins[type(layer)][1] if is_patched(layer) else type(layer)


def is_patched(layer: nn.Module) -> bool:
    """Whether a layer is of a class that was made here, and not of a subclass that something else made of it."""
    return type(layer) in _origins


def original_forward(kind: type[PatchedLayer], layer: nn.Module) -> Any:
    """The forward that a layer has without `kind`.

    A caller may have kept the method of `kind` from before `restore`, after which the layer is of another class.
    """
    return super(kind, layer).forward if isinstance(layer, kind) else layer.forward


def _patched_class(kind: type[PatchedLayer], original: Any) -> Any:
    origin = kind, original
    if origin not in _patched_classes:
        bases = (kind,) if issubclass(kind, original) else origin
        # Where two threads make the class at once, both take the one that is stored first.
        patched = _patched_classes.setdefault(origin, type(f"{kind.PREFIX}{original.__name__}", bases, {}))
        _origins[patched] = origin
    return _patched_classes[origin]


def _new_layer(kind: type[PatchedLayer], original: Any) -> Any:
    """An empty layer of a patched class, whose state copy and pickle fill in."""
    patched = _patched_class(kind, original)
    return patched.__new__(patched)
