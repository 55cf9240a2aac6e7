"""Layers that `accelerate` exchanged: each is of a subclass of the class that it had."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from tuner.hardware import device as devices
from tuner.lookup import evidence, lookup
from tuner.problem import Problem

GIVEN = "_tuner_given"
"""The attribute of an exchanged layer that its forward asks: what `exchange` was given."""


class Exchanged(nn.Module):  # type: ignore[misc]  # torch is not checked
    """A layer with another forward. All else is as its own class has it."""

    PREFIX: str

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy and pickle a layer as its own class, exchanged: a class that is made here has no name to import."""
        if type(self) not in _ASKED:  # something else made a class of it since
            own: tuple[Any, ...] = super().__reduce_ex__(protocol)
            return own
        _, _, *rest = super().__reduce_ex__(protocol)
        return _new, _ASKED[type(self)], *rest


_MADE: dict[tuple[type[Exchanged], Any], Any] = {}
_ASKED: dict[Any, tuple[type[Exchanged], Any]] = {}
"""By each class that was made here, the forward's class and the layer's own."""


def exchange(layer: nn.Module, kind: type[Exchanged], given: object) -> None:
    """Give a layer the forward of `kind`, in place of another that it got here."""
    layer.__class__ = _class(kind, own_class(layer))
    layer.__dict__[GIVEN] = given


def give_back(layer: nn.Module) -> bool:
    """Give a layer its own forward back, and its class unless something made another of it; false without either."""
    if GIVEN not in layer.__dict__:
        return False
    layer.__class__ = own_class(layer)
    del layer.__dict__[GIVEN]
    return True


def own_class(layer: nn.Module) -> Any:
    """The class that an exchanged layer had before; that of any other layer."""
    return _ASKED[type(layer)][1] if is_exchanged(layer) else type(layer)


def is_exchanged(layer: nn.Module) -> bool:
    """Whether a layer is of a class that was made here, and not of one that something else made of it since."""
    return type(layer) in _ASKED


def _class(kind: type[Exchanged], own: Any) -> Any:
    asked = kind, own
    if asked not in _MADE:
        bases = (kind,) if issubclass(kind, own) else asked
        made = _MADE.setdefault(asked, type(f"{kind.PREFIX}{own.__name__}", bases, {}))
        _ASKED[made] = asked
    return _MADE[asked]


def _new(kind: type[Exchanged], own: Any) -> Any:
    made = _class(kind, own)
    return made.__new__(made)


def without_table(family: Problem, index: int | None) -> str | None:
    """That no table of a CUDA device has a problem's family, which a layer needs to be served by "auto"; or None."""
    return _without_table(lookup.resolver(), family, index)


@functools.lru_cache(maxsize=1024)
def _without_table(_of: object, family: Problem, index: int | None) -> str | None:
    device = devices.current(index)
    if evidence.is_tuned(family, device):
        return None
    return f"of families that no table of {device.slug} has (`tuner model` lists what to tune)"


lookup.on_change(_without_table.cache_clear)
