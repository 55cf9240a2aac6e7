"""Every value that is read is checked against its column's type, since SQLite keeps any value in any column.

Otherwise a damaged or edited file would raise some error about types, far from its cause.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Connection, Dialect, Float, Integer, MetaData, Text, func, select
from sqlalchemy.types import TypeDecorator, TypeEngine

KINDS: dict[type[TypeEngine[Any]], tuple[str, tuple[type, ...]]] = {
    Text: ("a word", (str,)),
    Integer: ("a whole number", (int,)),
    BigInteger: ("a whole number", (int,)),
    Float: ("a number", (float, int)),
    Boolean: ("true or false", (bool, int)),
}
"""What a column of each type holds: in words, and as the Python types that drivers give."""
_SQLITE = {str: "text", int: "integer", float: "real", bool: "integer"}


class StrayValue(Exception):  # noqa: N818  it says what was found; `tuner.store.engine.faults` makes an error of it
    """A value of a kind that its column cannot hold."""


class Stored(TypeDecorator[Any]):
    """A column's type that checks what is read."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: TypeEngine[Any], name: str, *, nullable: bool) -> None:
        """Read as `kind` does, but raise StrayValue where the column `name` holds another kind of value."""
        super().__init__()
        self.impl_instance = kind
        self.name, self.nullable = name, nullable

    def copy(self, **_: Any) -> Stored:
        """What SQLAlchemy asks for when it copies a column."""
        return Stored(self.impl_instance, self.name, nullable=self.nullable)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """The function that checks and converts what the driver gives."""
        kind = self.impl_instance
        convert = kind.dialect_impl(dialect).result_processor(dialect, coltype)
        words, types = KINDS[type(kind)]

        def read(value: Any) -> Any:
            if type(value) not in types and not (value is None and self.nullable):
                raise StrayValue(f"{self.name} holds {value!r:.60}: expected {words}")
            return value if convert is None else convert(value)

        return read


def read_list(text: str, name: str) -> list[Any]:
    """Read the JSON list that a column holds as text.

    Raises:
        StrayValue: it holds something else.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise StrayValue(f"{name} holds {text!r:.60}: expected a JSON list")
    return found


def read_one_of(words: Iterable[str], word: str, name: str) -> str:
    """Check that a column holds one of some words; returns it.

    Raises:
        StrayValue: it is none of these.
    """
    if word not in words:
        raise StrayValue(f"{name} holds {word!r:.60}: expected one of {', '.join(words)}")
    return word


def watch(metadata: MetaData) -> None:
    """Have every column of these tables check what is read."""
    for table in metadata.tables.values():
        for column in table.columns:
            column.type = Stored(column.type, f"{table.name}.{column.name}", nullable=bool(column.nullable))


def complaint(connection: Connection, column: Column[Any]) -> str | None:
    """What is wrong with the values of a SQLite file's column; None where nothing is."""
    kind = column.type
    assert isinstance(kind, Stored)
    words, types = KINDS[type(kind.impl_instance)]
    allowed = {_SQLITE[each] for each in types} | ({"null"} if kind.nullable else set())
    stray = select(func.count()).select_from(column.table).where(func.typeof(column).not_in(sorted(allowed)))
    count = int(connection.execute(stray).scalar_one())
    return f"damaged: {kind.name} holds not {words} in {count} row{'s' * (count != 1)}" if count else None
