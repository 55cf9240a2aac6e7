"""Reads the key of a call's arguments, which is all that a call costs before its config is known.

A reader is generated code for calls of one form, as Triton's own binders are: inspecting the type of every argument
would cost twice as much. Where arguments change their type between calls of one form (None here, a tensor there), every
argument is inspected after all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from tuner.bounded import make_room
from tuner.tuned.arguments import memory_of
from tuner.tuned.signature import ALIGNMENT, Signature

Read = Callable[[Sequence[Any], Mapping[str, Any]], Hashable]
"""Returns a call's key from its positional and keyword arguments; calls of different problems have different keys."""
Known = tuple[Any, dict[str, Any], Callable[[], Any] | None]
"""What serves the calls of a key: a config, its parameters, and a function that counts a call, if one is wanted."""
MOST_KEYS = 65_536
"""The most keys whose configs are kept."""
_PLAIN = frozenset((bool, int, float, str, type(None)))


class KnownCalls:
    """What serves the calls of one kernel whose keys are known.

    Attributes:
        readers: readers of keys, by the calls' forms: the number of positional arguments, and the names of the others.
    """

    def __init__(self, signature: Signature) -> None:
        """Know no call yet."""
        self._signature = signature
        self.readers: dict[Hashable, KeyReader] = {}

    def remember(self, args: Sequence[Any], kwargs: Mapping[str, Any], known: Known) -> None:
        """Remember what serves the calls that have the key of this one."""
        form = (len(args), *kwargs)
        reader = self.readers.get(form)
        if reader is None:
            reader = self.readers[form] = KeyReader(self._signature, args, kwargs)
        if not reader.fits(args, kwargs):
            reader.known.clear()
        make_room(reader.known, MOST_KEYS)
        reader.known[reader.read(args, kwargs)] = known

    def forget(self) -> None:
        """Forget what serves which key."""
        for reader in tuple(self.readers.values()):  # other threads may add some
            reader.known.clear()


class KeyReader:
    """Reads the keys of calls of one form: a number of positional arguments, and the names of the others.

    Attributes:
        read: the function in use; replaced by a slower one when `fits` finds arguments of other types.
        known: by key, what serves a call.
    """

    __slots__ = ("_has_odd", "_several", "_signature", "_sources", "_types", "known", "read")

    def __init__(self, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Generate the code for calls with such arguments."""
        self._signature, self._several = signature, _several_models()
        self.known: dict[Hashable, Known] = {}
        sources = {name: f"a[{place}]" for place, name in enumerate(signature.names[: len(args)])}
        sources |= {name: f"k[{name!r}]" for name in kwargs}
        self._sources = {name: sources[name] for name in signature.identifying(sources)}
        self._has_odd = any(map(_is_odd, signature.named(args, kwargs).values()))
        self._types = self._types_of(args, kwargs)
        named = signature.named(args, kwargs)
        parts = [self._expression(name, source, named[name]) for name, source in self._sources.items()]
        # The code holds only indices and names of parameters; nothing that a caller passed is evaluated.
        self.read: Read = eval(
            f"lambda a, k: ({''.join(f'{part}, ' for part in parts)})", {"int": int, "hashable": hashable}
        )

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether a call's arguments have the types that the code was generated for; if not, stop using it."""
        self._has_odd = self._has_odd or any(map(_is_odd, self._signature.named(args, kwargs).values()))
        if self.read == self._inspect or self._types_of(args, kwargs) == self._types:
            return True
        self.read = self._inspect
        return False

    def _types_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Hashable, ...]:
        named = self._signature.named(args, kwargs)
        return (*(type(named[name]) for name in self._sources), self._has_odd)

    def _expression(self, name: str, source: str, value: Any) -> str:  # noqa: PLR0911  one a kind of argument
        if memory_of(value) is value and value is not None:
            device = f", {source}.get_device()" if self._several else ""
            return f"{source}.dtype, {source}.data_ptr() & {ALIGNMENT - 1}{device}"
        if memory_of(value) is not None:
            return f"{source}.base.dtype"
        if name in self._signature.key:
            if isinstance(value, Real) and not isinstance(value, Integral):
                return f"{source} if {source} == {source} else 'nan'"  # NaN equals nothing, itself included
            if _is_odd(value):
                return f"hashable({source})"
            return f"tuple({source})" if isinstance(value, list) else source
        if type(value) is int and self._signature.is_stride(name):
            kind = f"{source}.__class__"
            return f"{kind} if {kind} is not int else 16 if not {source} & {ALIGNMENT - 1} else {source} == 1"
        return f"{source}.__class__"

    def _inspect(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
        named = self._signature.named(args, kwargs)
        return tuple(self._fact(name, named[name]) for name in self._sources)

    def _fact(self, name: str, value: Any) -> Hashable:
        tensor = memory_of(value)
        if tensor is not None:
            at = tensor.data_ptr() % ALIGNMENT if tensor is value else 0
            return type(value), tensor.dtype, at, tensor.get_device() if self._several else 0
        if name in self._signature.key:
            if type(value) in _PLAIN:
                return value if value == value else "nan"  # noqa: PLR0124  NaN equals nothing
            return tuple(value) if isinstance(value, (list, tuple)) and not self._has_odd else hashable(value)
        if type(value) is int and self._signature.is_stride(name):
            return int, 1 if value == 1 else ALIGNMENT * (value % ALIGNMENT == 0)
        return str(type(value))


def hashable(value: Any) -> Hashable:
    """Return a value of the key as a part of a dict's key, in which NaN equals itself."""
    if isinstance(value, (list, tuple)):
        return tuple(map(hashable, value))
    if isinstance(value, Real) and value != value:  # noqa: PLR0124  as NaN alone is
        return "nan"
    kept: Hashable = value
    return kept


@functools.cache
def _several_models() -> bool:
    """Return whether this process sees GPUs of several models, which a key then distinguishes."""
    import torch

    return len({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}) > 1


def _is_odd(value: Any) -> bool:
    """Return whether a list or tuple holds lists or NaN."""
    return isinstance(value, (list, tuple)) and hashable(value) != tuple(value)
