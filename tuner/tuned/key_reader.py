"""What a call costs before its config is known: reading the key of its arguments.

A reader is an expression written for the calls that one line of a program makes, as Triton writes its own binders:
asking every argument of what kind it is costs twice as much. Calls of one form whose arguments change their kind (None
here, a tensor there) are read the long way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from tuner.tuned.arguments import memory_of
from tuner.tuned.signature import ALIGNMENT, Signature

Read = Callable[[Sequence[Any], Mapping[str, Any]], Hashable]
"""A call's key from its arguments by position and by name: it tells apart whatever `Signature.problem` does."""


class KeyReader:
    """Reads the keys of calls of one form: so many arguments by position, these by name.

    Attributes:
        read: the way in use; swapped for the long one when `fits` finds arguments of other kinds.
        known: by key the config, its parameters, and what counts a call where misses are recorded.
    """

    __slots__ = ("_kinds", "_places", "_several", "_signature", "known", "read")

    def __init__(self, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], *, several: bool) -> None:
        """Write the expression.

        Args:
            signature: of the kernel.
            args, kwargs: a call's.
            several: whether the process has GPUs of several models: then a key tells them apart.
        """
        self._signature, self._several = signature, several
        self.known: dict[Hashable, tuple[Any, dict[str, Any], Callable[[], Any] | None]] = {}
        sources = {name: f"a[{place}]" for place, name in enumerate(signature.names[: len(args)])}
        sources |= {name: f"k[{name!r}]" for name in kwargs}
        self._places = {name: sources[name] for name in signature.identifying(sources)}
        self._kinds = self._kinds_of(args, kwargs)
        named = signature.named(args, kwargs)
        parts = [self._expression(name, source, named[name]) for name, source in self._places.items()]
        # Indices and names of parameters, nothing else: no text of a caller's is evaluated.
        self.read: Read = eval(f"lambda a, k: ({''.join(f'{part}, ' for part in parts)})", {"int": int})

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call's arguments are of the kinds the expression was written for; if not, it is used no more."""
        if self.read == self._long or self._kinds_of(args, kwargs) == self._kinds:
            return True
        self.read = self._long
        return False

    def _kinds_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[type, ...]:
        named = self._signature.named(args, kwargs)
        return tuple(type(named[name]) for name in self._places)

    def _expression(self, name: str, source: str, value: Any) -> str:
        if memory_of(value) is value and value is not None:
            device = f", {source}.get_device()" if self._several else ""
            return f"{source}.dtype, {source}.data_ptr() & {ALIGNMENT - 1}{device}"
        if memory_of(value) is not None:
            return f"{source}.base.dtype"
        if name in self._signature.key:
            return f"tuple({source})" if isinstance(value, list) else source
        if type(value) is int and self._signature.is_stride(name):
            kind = f"{source}.__class__"
            return f"{kind} if {kind} is not int else 16 if not {source} & {ALIGNMENT - 1} else {source} == 1"
        return f"{source}.__class__"

    def _long(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
        named = self._signature.named(args, kwargs)
        return tuple(self._fact(name, named[name]) for name in self._places)

    def _fact(self, name: str, value: Any) -> Hashable:
        tensor = memory_of(value)
        if tensor is not None:
            at = tensor.data_ptr() % ALIGNMENT if tensor is value else 0
            return type(value), tensor.dtype, at, tensor.get_device() if self._several else 0
        if name in self._signature.key:
            kept: Hashable = tuple(value) if isinstance(value, list) else value
            return kept
        if type(value) is int and self._signature.is_stride(name):
            return int, 1 if value == 1 else ALIGNMENT * (value % ALIGNMENT == 0)
        return str(type(value))
