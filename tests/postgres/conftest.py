"""The tests' own PostgreSQL server, and databases on it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from private_server import Server, programs, running

from tuner.store import schema

REQUIRED = "TUNER_TEST_POSTGRES"
"""Set to "required", as .ci/run does, it makes a failure of what skips otherwise: no server or no driver."""
MIGRATED = "CREATE DATABASE migrated TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
"""Words are sorted there as people do, unlike in SQLite."""


def missing(what: str) -> None:
    if os.environ.get(REQUIRED) == "required":
        pytest.fail(f"{what}, and {REQUIRED} says that this must be tested")
    pytest.skip(what)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server, started once."""
    if importlib.util.find_spec("psycopg") is None:
        missing("psycopg is not installed (pip install 'triton-tuner[postgres]')")
    if (binaries := programs()) is None:
        missing("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    with running(binaries) as found:
        found.execute("CREATE ROLE guarded LOGIN PASSWORD 'secret'", MIGRATED, "CREATE DATABASE blank")
        schema.upgrade(found.url("migrated"))
        yield found


@pytest.fixture
def make_url(server, request) -> Iterator[Callable[..., str]]:
    """Make a database and return its URL: one at the head, or a copy of another template."""
    made: list[str] = []
    numbers = count(1)

    def make(template: str = "migrated", **options: str) -> str:
        name = f"test_{os.getpid()}_{id(request):x}_{next(numbers)}"
        server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        made.append(name)
        return server.url(name, **options)

    yield make
    server.execute(*(f"DROP DATABASE {name} WITH (FORCE)" for name in made))


@pytest.fixture
def url(make_url) -> str:
    """A new database at the head."""
    return make_url()


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    """The user's state folder, empty, of this process and those that it starts."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "triton-tuner" / "spool"
