from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tuner.errors import SchemaError, StoreError, TableError
from tuner.lookup.database import read_devices
from tuner.store import health, models, schema
from tuner.store.engine import locate, open_engine
from tuner.store.store import Store

ROOT = Path(__file__).parents[2]
FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.db"))

HEAD = schema.HEAD
NEXT = f"{int(HEAD) + 1:04}"
ADD_COLUMN = f"""
import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{HEAD}"


def upgrade():
    op.create_table("note", sa.Column("note_id", sa.Integer(), primary_key=True))
    with op.batch_alter_table("trial", recreate="always") as trial:
        trial.add_column(sa.Column("energy_j", sa.Float()))
"""
OPEN_AT_ONCE = """
import alembic.command, alembic.context, os, sys
from tuner.store import store
barrier, signal = os.pipe()
for _ in range(16):
    if os.fork() == 0:
        os.close(signal)
        os.read(barrier, 1)
        with store.Store.open(sys.argv[1]) as opened:
            sys.exit(len(opened.runs()))
os.close(signal)
print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(16)))
"""


@pytest.fixture
def newer_version(tmp_path, monkeypatch):
    """Make this the version after: its migrations hold one more. The migration's code is the argument."""

    def release(code: str = ADD_COLUMN) -> None:
        scripts = tmp_path / "migrations"
        shutil.copytree(schema.scripts(), scripts, ignore=shutil.ignore_patterns("__pycache__"))
        (scripts / "versions" / f"{NEXT}_next.py").write_text(code)
        monkeypatch.setattr(schema, "scripts", lambda: scripts)
        monkeypatch.setattr(schema, "HEAD", NEXT)

    return release


@pytest.fixture
def filled(store, database, run, make_trial) -> Path:
    store.record(run, [make_trial(16), make_trial(32)])
    store.close()
    return database


def query(database: Path, sql: str) -> list[tuple]:
    with closing(sqlite3.connect(database)) as plain:
        return plain.execute(sql).fetchall()


def set_revision(database: Path, revision: str) -> None:
    with closing(sqlite3.connect(database)) as plain, plain:
        plain.execute("UPDATE alembic_version SET version_num = ?", (revision,))


def test_models_and_migrations_agree(database):
    schema.upgrade(str(database))
    engine = open_engine(locate(str(database)), read_only=True, timeout_s=5)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), models.metadata) == []
        assert schema.drift(connection) == []
    engine.dispose()


def test_checks_of_the_models_are_those_of_the_migrations(database):
    """Autogenerate does not compare CHECK constraints."""
    schema.upgrade(str(database))
    made = "".join(sql for (sql,) in query(database, "SELECT sql FROM sqlite_master WHERE type = 'table'"))
    for table in models.metadata.sorted_tables:
        for constraint in table.constraints:
            if hasattr(constraint, "sqltext"):
                assert f"CONSTRAINT {constraint.name} CHECK ({constraint.sqltext})" in made


def test_the_head_is_the_newest_migration():
    config = Config()
    config.set_main_option("script_location", str(schema.scripts()))
    assert ScriptDirectory.from_config(config).get_heads() == [schema.HEAD]


def test_no_migration_imports_the_models():
    for migration in (ROOT / "migrations" / "versions").glob("*.py"):
        assert "tuner" not in [line.split()[1].partition(".")[0] for line in imports(migration)], migration


def imports(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]


def test_autogenerate_works_in_a_checkout_and_finds_nothing_to_do(tmp_path):
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "migrations", checkout / "migrations", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "alembic.ini", checkout)
    command = [sys.executable, "-m", "alembic", "revision", "--autogenerate", "--rev-id", "0999", "-m", "nothing new"]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True, timeout=60)
    written = (checkout / "migrations" / "versions" / "0999_nothing_new.py").read_text()
    assert f"down_revision = '{schema.HEAD}'" in written
    body = written.partition("def upgrade() -> None:")[2]
    assert [line for line in body.split("\n") if line.strip() and "#" not in line] == ["    pass"]


def test_alembic_writes_the_schema_as_sql():
    command = [sys.executable, "-m", "alembic", "upgrade", "head", "--sql"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    with closing(sqlite3.connect(":memory:")) as plain:
        plain.executescript(done.stdout)
        assert plain.execute("SELECT count(*) FROM tuned_gemm").fetchone() == (0,)


@pytest.mark.parametrize("made", ["missing", "empty"])
def test_a_missing_or_empty_file_is_brought_to_the_head(database, made):
    if made == "empty":
        database.parent.mkdir(parents=True)
        database.touch()
    Store.open(str(database)).close()
    assert query(database, "SELECT version_num FROM alembic_version") == [(schema.HEAD,)]


def test_opening_a_database_at_the_head_does_not_import_alembic(filled):
    code = "import sys; from tuner.store.store import Store; Store.open(sys.argv[1]).close(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, filled], check=True, capture_output=True, text=True, timeout=60)
    assert "sqlalchemy" in done.stdout.split()
    assert not {"alembic", "torch", "triton"} & set(done.stdout.split())


def test_sixteen_processes_that_open_one_new_database_at_once_all_succeed(database, python):
    process = python(OPEN_AT_ONCE, database)
    assert process.communicate(timeout=60) == (f"{[0] * 16}\n", "")
    assert query(database, "SELECT version_num FROM alembic_version") == [(schema.HEAD,)]
    assert query(database, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("read_only", [False, True])
def test_an_older_schema_is_refused_with_the_command_and_left_alone(filled, newer_version, read_only):
    newer_version()
    before = filled.read_bytes()
    with pytest.raises(SchemaError, match=rf"schema {HEAD}.* needs {NEXT}: run `tuner db upgrade --db {filled}`"):
        Store.open(str(filled), read_only=read_only)
    assert filled.read_bytes() == before


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_schema_is_refused_and_left_alone(filled, read_only):
    set_revision(filled, "9999")
    before = filled.read_bytes()
    with pytest.raises(SchemaError, match=r"schema 9999, newer than .*: upgrade triton-tuner"):
        Store.open(str(filled), read_only=read_only)
    with pytest.raises(SchemaError, match="upgrade triton-tuner"):
        schema.upgrade(str(filled))
    assert filled.read_bytes() == before


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    theirs = tmp_path / "places.db"
    with closing(sqlite3.connect(theirs)) as plain:
        plain.execute("CREATE TABLE moz_places (id)")
    before = theirs.read_bytes()
    for use in (Store.open, schema.upgrade):
        with pytest.raises(SchemaError, match=r"no database of triton-tuner .*moz_places"):
            use(str(theirs))
    assert theirs.read_bytes() == before


@pytest.mark.parametrize("revision", ["0001", "0002", "9999", "ab12cd34ef56"])
def test_another_program_s_alembic_database_is_called_that(tmp_path, revision):
    theirs = tmp_path / "shop.db"
    with closing(sqlite3.connect(theirs)) as plain, plain:
        plain.executescript(
            "CREATE TABLE customer (id); CREATE TABLE device (id); CREATE TABLE alembic_version (version_num)"
        )
        plain.execute("INSERT INTO alembic_version VALUES (?)", (revision,))
    before = theirs.read_bytes()
    for use in (Store.open, schema.upgrade, health.check, read_devices):
        with pytest.raises((SchemaError, TableError), match=r"no(t a)? database of triton-tuner .*customer"):
            use(theirs if use is read_devices else str(theirs))
    assert theirs.read_bytes() == before


def test_an_empty_database_cannot_be_opened_read_only(tmp_path):
    (tmp_path / "empty.db").touch()
    with pytest.raises(SchemaError, match="is empty: `tuner run"):
        Store.open(str(tmp_path / "empty.db"), read_only=True)
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_an_upgrade_keeps_the_rows_and_makes_a_copy_first(filled, newer_version):
    trials = query(filled, "SELECT * FROM trial")
    newer_version()
    done = schema.upgrade(str(filled))
    assert (done.before, done.after) == (HEAD, NEXT)
    assert query(filled, "SELECT * FROM trial") == [(*trial, None) for trial in trials]
    assert done.backup is not None
    assert done.backup.name.startswith(f"tuner.{HEAD}.20")
    assert query(done.backup, "SELECT version_num FROM alembic_version") == [(HEAD,)]
    assert query(done.backup, "SELECT * FROM trial") == trials
    assert schema.upgrade(str(filled)).backup is None


def test_an_upgrade_of_a_database_without_rows_makes_no_copy(store, database, newer_version):
    store.close()
    newer_version()
    assert schema.upgrade(str(database)).backup is None
    assert [entry.name for entry in database.parent.iterdir()] == ["tuner.db"]


def test_an_upgrade_whose_copy_cannot_be_written_does_not_happen(filled, newer_version, monkeypatch, tmp_path):
    newer_version()
    copy = schema.backup_file
    absent = tmp_path / "absent" / "copy.db"
    monkeypatch.setattr(schema, "backup_file", lambda path, revision: copy(path, revision=revision, destination=absent))
    with pytest.raises(StoreError, match="no backup of"):
        schema.upgrade(str(filled))
    assert query(filled, "SELECT version_num FROM alembic_version") == [(HEAD,)]


def test_a_migration_that_fails_leaves_everything_as_it_was(filled, newer_version):
    before = query(filled, "SELECT * FROM sqlite_master"), query(filled, "SELECT * FROM trial")
    newer_version(f"{ADD_COLUMN}\n    op.execute('INSERT INTO nowhere VALUES (1)')\n")
    with pytest.raises(StoreError, match="no such table: nowhere"):
        schema.upgrade(str(filled))
    assert (query(filled, "SELECT * FROM sqlite_master"), query(filled, "SELECT * FROM trial")) == before
    assert query(filled, "SELECT version_num FROM alembic_version") == [(HEAD,)]


def test_a_migration_that_would_orphan_rows_is_rolled_back(filled, newer_version):
    newer_version(f"{ADD_COLUMN}\n    op.execute('DELETE FROM problem')\n")
    with pytest.raises(SchemaError, match="would leave 2 rows whose parents are missing"):
        schema.upgrade(str(filled))
    assert query(filled, "SELECT count(*) FROM problem") == [(1,)]
    assert query(filled, "SELECT version_num FROM alembic_version") == [(HEAD,)]


def test_every_released_revision_has_a_database_of_its_time():
    released = sorted(path.name.partition("_")[0] for path in (ROOT / "migrations" / "versions").glob("[0-9]*.py"))
    assert [path.stem for path in FIXTURES] == released


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_a_database_of_each_released_revision_upgrades_and_keeps_its_rows(fixture, tmp_path):
    old = tmp_path / fixture.name
    shutil.copy(fixture, old)
    tables = [name for (name,) in query(old, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    counts = {name: query(old, f"SELECT count(*) FROM {name}") for name in tables if name != "alembic_version"}
    assert all(count != [(0,)] for count in counts.values()), "a fixture has rows in every table"
    done = schema.upgrade(str(old))
    assert (done.before, done.after) == (fixture.stem, schema.HEAD)
    assert {name: query(old, f"SELECT count(*) FROM {name}") for name in counts} == counts
    with Store.open(str(old)) as store:
        assert [(str(w.problem), w.config["BLOCK_SIZE_M"], w.median_us, w.ties) for w in store.winners()] == [
            ("matmul 16x4096x4096 bfloat16 nt", 32, 12.25, 2),
            ("matmul 1024x1024x1024 float32 nn bias+gelu tf32", 128, 40.5, 1),
        ]
        assert store.count_trials() == 12
        assert sorted({str(row.outcome.state) for row in store.trials()}) == [
            "COMPILE_ERROR",
            "COMPLETE",
            "CRASHED",
            "INVALID",
            "OUT_OF_RESOURCES",
            "RUNTIME_ERROR",
            "TIMEOUT",
            "WRONG_RESULT",
        ]
