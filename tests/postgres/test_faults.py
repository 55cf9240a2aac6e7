"""What can go wrong with a server is one line that names its database and no password."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from sqlalchemy import func, select, update

from tuner.cli import main
from tuner.errors import StoreError
from tuner.hardware.device import KNOWN, Environment
from tuner.store import models, runs, schema
from tuner.store import server as server_module
from tuner.store.engine import faults, locate, open_engine, opened, writing
from tuner.store.store import Store

COMMANDS = (
    "show winners --db {}",
    "db check --db {}",
    "db upgrade --db {}",
    "export out --db {}",
    "merge {} there.db",
    "merge out.db {}",
    "run --shape 16x16x16 --device interpreter --db {}",
)


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """Run a command that must fail: its one line."""
    monkeypatch.chdir(tmp_path)
    schema.upgrade("there.db")
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)

    def run(command: str, url: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(command.format(url).split())
        out, err = capsys.readouterr()
        assert (ended.value.code, out, err.count("\n")) == (1, "", 1), err
        assert "secret" not in err
        return err

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_a_server_that_is_not_running(refused, command, tmp_path):
    pytest.importorskip("psycopg")
    assert "no server answers there: start it" in refused(command, f"postgresql://u:secret@/x?host={tmp_path}")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_that_is_not_there(refused, server, command):
    assert "make it with createdb" in refused(command, server.url("absent"))


@pytest.mark.parametrize("given", ["", ":wrong-secret"])
def test_a_wrong_password_or_none(refused, server, url, given, monkeypatch, tmp_path):
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "absent"))
    asked = url.replace("//tuner@", f"//guarded{given}@")
    wrong = "the server does not take this password of this user: give postgresql://USER:PASSWORD@HOST/NAME"
    assert (wrong if given else "postgresql://USER:PASSWORD@HOST/NAME") in refused(COMMANDS[0], asked)
    assert wrong in refused(COMMANDS[0], f"{asked}&password=secret-too")


def test_a_host_that_no_name_server_knows(refused):
    pytest.importorskip("psycopg")
    said = refused(COMMANDS[0], "postgresql://u:secret@no-such-host.invalid/x")
    assert "no host has that name: give postgresql://USER@HOST/NAME" in said or "no server answers there" in said


def test_a_password_with_an_at_is_not_shown_in_part(refused):
    split = refused(COMMANDS[0], "postgresql://tuner:sec@ret@127.0.0.1:5432/fleet")
    assert split == "tuner: postgresql://...: the host has an @: write that of a password as %40\n"


def test_a_schema_that_is_not_there(refused, url):
    pytest.importorskip("psycopg")
    mark = "&" if "?" in url else "?"
    assert "no schema that search_path names is there" in refused(
        "db upgrade --db {}", f"{url}{mark}options=-csearch_path%3Dnosuch"
    )


def test_a_user_that_is_unknown_or_may_not_read(refused, url):
    assert "the server does not know this user" in refused(COMMANDS[0], url.replace("//tuner@", "//nobody@"))
    assert "its owner can GRANT it" in refused(COMMANDS[0], url.replace("//tuner@", "//guarded:secret@"))


def test_no_driver_is_installed(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for command in COMMANDS:
        assert "pip install 'triton-tuner[postgres]'" in refused(command, "postgresql://u:secret@127.0.0.1:1/x")


@pytest.mark.parametrize("revision", ["0001", "ab12cd34ef56", None])
def test_another_program_s_database(refused, server, make_url, revision):
    url = make_url("blank")
    name = locate(url).url.database
    server.execute("CREATE TABLE song (title text)", "CREATE TABLE run (n int)", database=name)
    if revision:
        alembic = (
            "CREATE TABLE alembic_version (version_num text)",
            f"INSERT INTO alembic_version VALUES ('{revision}')",
        )
        server.execute(*alembic, database=name)
    for command in COMMANDS:
        assert "is no database of triton-tuner but another program's (it has the tables" in refused(command, url)


@pytest.mark.parametrize("scheme", ["mysql", "mysql+pymysql", "oracle", "mssql", "postgresqlx", "http", "s3"])
def test_another_kind_of_database(refused, scheme):
    for command in COMMANDS:
        said = refused(command, f"{scheme}://u:secret@host/x")
        assert f"{scheme}://...: neither SQLite nor PostgreSQL: expected a path, or postgresql://user@host/name" in said


def test_a_lock_that_another_process_holds(url):
    engine = open_engine(locate(url), read_only=False, timeout_s=5)
    with writing(engine).begin(), Store.open(url, busy_timeout_s=0.2) as store:
        assert store.count_trials() == 0, "a writer does not keep readers out"
        with pytest.raises(StoreError, match="another process holds its lock"):
            store.begin_run(KNOWN["sm_90"], Environment("3.7.1", "2.13.0", "", "", "3.11"), argv=[], host="h")
    engine.dispose()


def test_a_connection_that_the_server_ends_is_replaced_and_one_in_use_is_one_line(server, url):
    name = locate(url).url.database
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    with Store.open(url) as store:
        server.execute(end)
        assert store.count_trials() == 0
        reading = store._reading()
        used = reading.__enter__()
        server.execute(end)
        with pytest.raises(StoreError, match=r"^[^\n]*type the same command again[^\n]*$"), faults(locate(url)):
            used.execute(select(models.run))


@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[1], COMMANDS[-1]])
def test_a_stopped_server_is_one_line_after_the_time_to_connect(refused, server, url, command):
    with server.stopped():
        assert "no server answers there" in refused(command, f"{url}&connect_timeout=2")


def test_a_server_that_stops_in_the_middle_of_a_statement_is_one_line(server, url, monkeypatch):
    monkeypatch.setattr("tuner.store.server.SILENCE_S", 0.3)
    stopping = ExitStack()
    with Store.open(f"{url}&connect_timeout=2") as store, store._reading() as used, stopping:
        stopping.enter_context(server.stopped())
        with pytest.raises(StoreError, match=r"^[^\n]*no server answers there[^\n]*$"), faults(locate(url)):
            used.execute(select(models.run))


def test_a_long_statement_is_not_cut_while_the_server_answers(url, monkeypatch):
    monkeypatch.setattr("tuner.store.server.SILENCE_S", 0.2)
    probes = []
    probe = server_module._Connection._probe
    monkeypatch.setattr(server_module._Connection, "_probe", lambda self: (probes.append(1), probe(self)))
    with Store.open(url) as store, store._reading() as used:
        assert used.exec_driver_sql("SELECT 7 FROM pg_sleep(1)").scalar() == 7
    assert len(probes) > 1


def test_a_reader_does_not_wait_for_ever_for_an_upgrade(server, url):
    with opened(locate(url), read_only=False) as engine, writing(engine).begin() as upgrade:
        upgrade.exec_driver_sql("LOCK TABLE trial IN ACCESS EXCLUSIVE MODE")
        with Store.open(url, busy_timeout_s=0.2) as store, pytest.raises(StoreError, match="holds its lock"):
            store.count_trials()


def test_a_schema_is_chosen_by_the_search_path_and_others_are_not_touched(server, make_url, capsys):
    """The options of a URL are libpq's: what they name is where every command works."""
    url = make_url("blank")
    server.execute("CREATE SCHEMA mine", "CREATE TABLE song (title text)", database=locate(url).url.database)
    mine = f"{url}&options=-csearch_path%3Dmine"
    for command in ("db upgrade", "db check", "show winners"):
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), "--db", mine])
        assert ended.value.code == 0, capsys.readouterr()
    query = "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename IN ('trial', 'alembic_version')"
    engine = open_engine(locate(url), read_only=True, timeout_s=5)
    with engine.connect() as connection:
        assert connection.exec_driver_sql(query).scalars().all() == ["mine"]
    engine.dispose()


def test_what_is_read_in_one_transaction_does_not_change_under_it(url):
    count = select(func.count()).select_from(models.run)
    reader = open_engine(locate(url), read_only=True, timeout_s=5)
    with reader.connect() as connection, Store.open(url) as store:
        assert connection.execute(count).scalar() == 0
        store.begin_run(KNOWN["sm_90"], Environment("3.7.1", "2.13.0", "", "", "3.11"), argv=[], host="h")
        assert connection.execute(count).scalar() == 0
    reader.dispose()


def test_a_run_lives_by_the_server_s_clock_and_not_by_its_machine_s(url, monkeypatch):
    """Machines whose clocks are an hour apart share a server."""
    environment = Environment("3.7.1", "2.13.0", "", "", "3.11")

    def begin(store):
        return store.begin_run(KNOWN["sm_90"], environment, argv=[], host="h")

    with Store.open(url) as store:
        first = begin(store)
        monkeypatch.setattr(runs, "datetime", SimpleNamespace(now=lambda utc: datetime.now(utc) + timedelta(hours=1)))
        second = begin(store)
        assert {row.uuid: row.status for row in store.runs()} == {first.uuid: "RUNNING", second.uuid: "RUNNING"}
        with writing(store._engine).begin() as connection:
            connection.execute(update(models.run).values(heartbeat_at="2020-01-01T00:00:00Z"))
        store.heartbeat(second)
        third = begin(store)
        found = {row.uuid: row.status for row in store.runs()}
    assert found == {first.uuid: "INTERRUPTED", second.uuid: "RUNNING", third.uuid: "RUNNING"}
