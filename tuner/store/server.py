"""Connections to a PostgreSQL server that stops answering: none waits for ever. It needs the driver, psycopg."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import Connection, Engine, create_engine, event

if TYPE_CHECKING:
    from tuner.store.engine import Database

CONNECT_TIMEOUT_S = 10
"""How long a server may take to let somebody in, unless its URL says otherwise."""
SILENCE_S = 10.0
"""How long a statement may run before the server is asked whether it still answers anybody, and again after as long."""
_ADVISORY_LOCK = 0x7475_6E65  # any number that nobody else takes: "tune"
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3, "tcp_user_timeout": 30_000}
"""A cable that is cut, or a host that is gone, ends a TCP connection within a minute; milliseconds and seconds."""


class _Connection(psycopg.Connection[Any]):
    """A connection that notices while it waits that the server answers nobody any more.

    A time limit alone, such as `statement_timeout`, would cut a long merge, and a stopped server does not keep it.
    """

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """Wait for the server's answer, as psycopg does; before its 3.3 the generator is not told that time passes."""
        return super().wait(self._watched(gen), *args, **options)

    def _watched(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        asked = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted  # a tenth of a second at most, then psycopg says that nothing is ready
                if not ready and time.monotonic() - asked > SILENCE_S:
                    self._probe()
                    asked = time.monotonic()
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value

    def _probe(self) -> None:
        given: dict[str, Any] = {**self.info.get_parameters(), "password": self.info.password}
        try:
            psycopg.connect(**{"connect_timeout": CONNECT_TIMEOUT_S, **given}).close()
        except psycopg.errors.ConnectionTimeout:
            self.close()  # what it was asked may be done or not, and its answer is not waited for
            raise
        except psycopg.Error:  # it does answer: that it is full, or shutting down
            return


def connections(database: Database, timeout_s: float) -> Engine:
    """Connections to a server that behave as those to a SQLite file do.

    Args:
        database: one with a URL.
        timeout_s: how long a statement waits for another process's lock, seconds.
    """
    assert database.url is not None
    defaults = {"connect_timeout": CONNECT_TIMEOUT_S, **_KEEPALIVES}
    given = {name: value for name, value in defaults.items() if name not in database.url.query}
    options = {"location": database.label}
    # A connection that the server ended while nobody used it is replaced before the next use.
    engine = create_engine(database.url, connect_args=given, execution_options=options, pool_pre_ping=True)
    lock_timeout = f"SET LOCAL lock_timeout = {round(timeout_s * 1000)}"

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(lock_timeout)  # of readers, too: an upgrade locks whole tables
        if connection.get_execution_options().get("begin") == "IMMEDIATE":
            # One writer at a time here too: `RowIds` relies on it, and so do first starts.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
        else:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    def connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> psycopg.Connection[Any]:
        return _Connection.connect(*arguments, **options)

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "begin", begin)
    return engine
