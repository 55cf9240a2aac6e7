"""Whether a binary serves a call that Triton specialized otherwise: all that it assumes must hold for the call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Arguments = Mapping[str, tuple[str, str, frozenset[str]]]
"""By name, what a binary knows of an argument: its type, the value compiled in, and facts about values that are not."""
_COMPILED_IN = "constexpr"
_ONE = (_COMPILED_IN, "1", frozenset[str]())
"""How Triton compiles an integer in that is 1."""


def arguments_of(src: Any) -> Arguments | None:
    """What Triton specialized a source on; None where an argument is a tuple.

    Args:
        src: Triton's ASTSource.
    """
    found = {}
    for at, (name, kind) in enumerate(src.signature.items()):
        if not isinstance(kind, str):
            return None
        value = src.constants.get((at,), "")
        known = {str(fact) for fact in src.attrs.get((at,), ())}
        found[name] = kind, getattr(value, "cache_key", str(value)), frozenset(known)
    return found


def misfits(binary: Arguments, call: Arguments) -> list[str]:
    """The names of the arguments of a call that a binary cannot take."""
    return [name for name, wanted in call.items() if not _fits(binary.get(name), wanted)]


def facts(binary: Arguments) -> int:
    """How much a binary assumes: of several that serve a call, the one that assumes most is nearest."""
    return sum(len(known) + (kind == _COMPILED_IN) for kind, _, known in binary.values())


def _fits(binary: tuple[str, str, frozenset[str]] | None, call: tuple[str, str, frozenset[str]]) -> bool:
    if binary is None:
        return False
    if call == _ONE and binary == ("i32", "", frozenset()):
        return True  # it takes any number
    return binary[:2] == call[:2] and binary[2] <= call[2]
