"""Every value that is read is checked against its column's type, since SQLite keeps any value in any column.

Otherwise a damaged or edited file would raise some error about types, far from its cause.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Boolean, Dialect, Float, Integer, MetaData, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

KINDS: dict[type[TypeEngine[Any]], tuple[str, tuple[type, ...]]] = {
    Text: ("a string", (str,)),
    Integer: ("an integer from 0 to 2147483647", (int,)),
    BigInteger: ("an integer from 0", (int,)),
    Float: ("a number from 0", (float, int)),
    Boolean: ("true or false", (bool, int)),
}
"""What a column of each type holds: in words, and as the Python types that drivers give."""
_MAX = {Integer: 2**31 - 1, BigInteger: 2**63 - 1, Float: sys.float_info.max, Boolean: 1}
"""The largest value of a column of each type; nothing that is kept is below zero."""
_INFINITE = "trial.error"
"""The one column that may be infinite: a wrong result can be."""


class StrayValue(Exception):  # noqa: N818  it says what was found; `tuner.store.engine.faults` makes an error of it
    """A value of a kind that its column cannot hold."""


@dataclass(frozen=True, slots=True)
class Stray:
    """Stands in a row for a value that its column cannot hold.

    It is no exception yet, because one that is raised while rows are fetched would take the rows after it along.
    """

    table: str
    text: str


class Stored(TypeDecorator[Any]):
    """A column's type that checks what is read and what is written, alike on every database."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: TypeEngine[Any], name: str, *, nullable: bool) -> None:
        """Read as `kind` does, but give a Stray where the column `name` holds another kind of value."""
        super().__init__()
        # SQLAlchemy replaces `impl_instance` by the type of a driver's own.
        self.impl_instance = self.kind = kind
        self.name, self.nullable = name, nullable
        self._most: Any = float("inf") if name == _INFINITE else _MAX.get(type(kind))
        # A figure, as the shared memory that a kernel asks for, may be of any size: it then says that it is huge.
        self._capped = nullable and type(kind) is Integer

    def copy(self, **_: Any) -> Stored:
        """What SQLAlchemy asks for when it copies a column."""
        return Stored(self.kind, self.name, nullable=self.nullable)

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], Any]:  # noqa: ARG002
        """The function that checks what is written."""
        return self.check

    def check(self, value: Any) -> Any:
        """What is written: words that every database and encoding can hold, and None for NaN, as SQLite keeps it.

        Raises:
            StrayValue: the column cannot hold the value.
        """
        if value is None:
            return None
        if isinstance(value, str):
            if value.isascii() and "\0" not in value:
                return value
            return value.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
        if self._most is None or 0 <= value <= self._most:
            return value
        if isinstance(value, float) and math.isnan(value):
            return None
        if self._capped and value > 0:
            return self._most
        raise StrayValue(self._complaint(value))

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """The function that checks and converts what the driver gives."""
        convert = self.kind.dialect_impl(dialect).result_processor(dialect, coltype)
        _, types = KINDS[type(self.kind)]
        most, nullable, capped, table = self._most, self.nullable, self._capped, self.name.partition(".")[0]

        def read(value: Any) -> Any:
            if value is None and nullable:
                return None
            if type(value) not in types or (most is not None and not 0 <= value <= most):
                return most if capped and type(value) is int and value > 0 else Stray(table, self._complaint(value))
            return value if convert is None else convert(value)

        return read

    def _complaint(self, value: Any) -> str:
        return f"{self.name} holds {value!r:.60}: expected {KINDS[type(self.kind)][0]}"


def read_list(text: str, name: str) -> list[Any]:
    """Read the JSON list that a column holds as text; anything else is a StrayValue."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise StrayValue(f"{name} holds {text!r:.60}: expected a JSON list")
    return found


def read_one_of(words: Iterable[str], word: str, name: str) -> str:
    """Return what a column holds if it is one of some words; anything else is a StrayValue."""
    if word not in words:
        raise StrayValue(f"{name} holds {word!r:.60}: expected one of {', '.join(words)}")
    return word


def watch(metadata: MetaData) -> None:
    """Have every column of these tables check what is read."""
    for table in metadata.tables.values():
        for column in table.columns:
            column.type = Stored(column.type, f"{table.name}.{column.name}", nullable=bool(column.nullable))
