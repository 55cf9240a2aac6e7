"""Every command that takes a database, on a PostgreSQL server: what a user sees is what SQLite gives."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import overlapping
import pytest

from tuner.bench.document import ContestReport, document
from tuner.cli import main
from tuner.cli.doctor_checks import Status, check_database
from tuner.errors import StoreError
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store import schema
from tuner.store.engine import locate, open_engine
from tuner.store.records import Outcome, Resources, State, Trial
from tuner.store.store import Store

MAKE_FIXTURE = Path(__file__).parents[1] / "store" / "make_fixture.py"
SHOWN = (
    *("winners", "trials", "runs", "devices", "problems"),
    "winners --shape 16x4096x4096 --kernel pointer",
    "trials --state wrong_result",
    "trials --problem N=4096,dtype=bf16 --limit 3",
    "trials --problem act=RELU",
    "problems --problem act=relu",
    "problems --device Nvidia-h200-sm90-1",
)
MADE = ("export {0} --db {1}", "export {0} --db {1} --format triton", "diff {1} {1}")
HUGE = Resources(shared_bytes=2**40)


@pytest.fixture
def tuner(capsys, monkeypatch):
    """Run `tuner` here: (exit code, stdout, stderr)."""
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)

    def run(command: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(command.split())
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def fixture():
    spec = importlib.util.spec_from_file_location("make_fixture", MAKE_FIXTURE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def filled(tmp_path, fixture) -> str:
    """A SQLite file with rows in every table, and words and figures that databases treat differently."""
    path = str(tmp_path / "filled.db")
    with Store.open(path) as store:
        fixture.fill(store)
        small = replace(KNOWN["sm_90"], slug="Nvidia-h200-sm90-1", sm_count=1, memory_bytes=2**40)
        run = store.begin_run(small, fixture.ENVIRONMENT, argv=["tuner", "ü\0\udcff"], host="Ä")
        for act, error in (("relu", float("nan")), ("Relu", float("inf")), ("RELU", 0.5)):
            problem = Problem.keyed("norm", {"act": act, "N": 4096}, dtype="bfloat16")
            outcome = Outcome(State.WRONG_RESULT, "bytes \0, \udcff and €", error=error, throttle=2**40, resources=HUGE)
            store.record(run, [Trial(problem, Config("pointer", n=act), fixture.KERNEL, outcome)])
    return path


@pytest.fixture
def on_server(filled, url, tuner) -> str:
    """The same in a server's database."""
    assert tuner(f"merge {url} {filled}")[0] == 0
    return url


@pytest.mark.parametrize("shown", [*SHOWN, *(f"{shown} --json" for shown in SHOWN)])
def test_a_server_shows_byte_for_byte_what_sqlite_shows(filled, on_server, tuner, shown):
    expected = tuner(f"show {shown} --db {filled}")
    assert tuner(f"show {shown} --db {on_server}") == expected
    assert expected[0] == 0
    assert expected[1].strip() not in ("", "[]")


@pytest.mark.parametrize("made", MADE)
def test_a_server_is_exported_and_compared_byte_for_byte_as_sqlite_is(
    filled, on_server, tuner, tmp_path, made, install
):
    install()  # no kernel: winners of any version are exported
    found = []
    for number, where in enumerate((filled, on_server)):
        folder = tmp_path / str(number)
        code, out, _ = tuner(made.format(folder, where))
        assert code == 0
        files = sorted(folder.iterdir()) if folder.exists() else []
        found.append((out.replace(str(folder), ""), [(path.name, path.read_bytes()) for path in files]))
    assert found[0] == found[1]


def test_merges_between_files_and_servers_lose_and_change_nothing(filled, on_server, make_url, tuner, tmp_path):
    places = [on_server, make_url("blank"), str(tmp_path / "back.db")]
    for source, destination in itertools.pairwise(places):
        code, out, err = tuner(f"merge {destination} {source}")
        assert (code, err) == (0, "")
        assert "15 trials" in out
    assert "nothing new" in tuner(f"merge {filled} {places[-1]}")[1]
    for shown in SHOWN:
        assert tuner(f"show {shown} --json --db {places[-1]}") == tuner(f"show {shown} --json --db {filled}")
    found = (tuner(f"verify {place} --json")[1] for place in (on_server, filled))
    server, file = (json.loads(out)["places"][0]["findings"] for out in found)
    assert sorted(str({**finding, "place": ""}) for finding in server) == sorted(
        str({**finding, "place": ""}) for finding in file
    )


def test_the_database_itself_is_made_checked_upgraded_and_not_copied(make_url, tuner):
    url = make_url("blank")
    label = locate(url).label
    code, _, err = tuner(f"show winners --db {url}")
    assert (code, err) == (1, f"tuner: {label} is empty: `tuner run --db '{label}'` fills it\n")
    assert tuner(f"db upgrade --db {url}") == (0, f"made {label} at {schema.HEAD}: it was missing or empty\n", "")
    assert tuner(f"db upgrade --db {url}")[1] == f"{label} is at {schema.HEAD} already\n"
    assert tuner(f"db current --db {url}")[1] == f"{label}: {schema.HEAD} (head {schema.HEAD})\n"
    assert tuner(f"db check --db {url}") == (0, f"{label}: pages, references and schema are sound\n", "")
    code, out, err = tuner(f"db backup --db {url}")
    assert (code, out) == (1, "")
    assert err == f"tuner: {label} is on a server: copy it by its own means, for instance pg_dump\n"


@pytest.mark.parametrize(("revision", "words"), [("0001", "run `tuner db upgrade --db"), ("9999", "upgrade triton-")])
def test_a_schema_behind_or_ahead_is_one_line_with_what_to_type(server, make_url, tuner, fixture, revision, words):
    url = make_url("blank")
    if revision == "0001":
        _migrate_to(url, revision)
    else:
        url = make_url()
        server.execute("UPDATE alembic_version SET version_num = '9999'", database=locate(url).url.database)
    for command in ("show trials", "export out", "run --shape 16x16x16 --device interpreter"):
        code, out, err = tuner(f"{command} --db {url}")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert words in err
    code, out, _ = tuner(f"db check --db {url}")
    assert code == 1
    assert words in out
    if revision == "0001":
        assert tuner(f"db upgrade --db {url}")[0] == 0
        with Store.open(url) as store:
            fixture.fill(store)
        assert tuner(f"db check --db {url}")[0] == 0


def _migrate_to(url: str, revision: str) -> None:
    from alembic import command

    engine = open_engine(locate(url), read_only=False, timeout_s=5)
    with schema.migrating(engine) as connection:
        config = schema._config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


def test_the_view_of_a_server_shows_the_ranges_that_lookups_use_and_an_upgrade_keeps_its_readers(
    server, make_url, tuner
):
    url = make_url("blank")
    _migrate_to(url, "0006")
    name = locate(url).url.database
    server.execute("GRANT SELECT ON tuned_gemm TO guarded", database=name)
    assert tuner(f"db upgrade --db {url}")[0] == 0
    assert tuner(f"db check --db {url}")[0] == 0
    with Store.open(url) as store:
        overlapping.fill(store)
        assert overlapping.shown(store) == overlapping.expected(store)
    server.execute("SET ROLE guarded; SELECT * FROM tuned_gemm", database=name)


def test_doctor_and_check_say_what_is_wrong_with_a_server_s_database(server, on_server, tuner):
    assert [found.status for found in check_database(on_server)] == [Status.OK]
    damage = ("DROP VIEW tuned_gemm", "UPDATE config SET parameters = '[1' WHERE config_id = 1")
    server.execute(*damage, database=locate(on_server).url.database)
    code, out, _ = tuner(f"db check --db {on_server}")
    assert code == 1
    assert "missing: view tuned_gemm" in out
    assert "row 1 of config: " in out
    assert [found.status for found in check_database(on_server)] == [Status.WRONG, Status.WRONG]
    code, out, _ = tuner(f"doctor --json --db {on_server}")
    assert code == 1
    assert "missing: view tuned_gemm" in out


@pytest.mark.parametrize("template", ["migrated", "blank"])
def test_doctor_calls_wrong_what_a_run_could_not_write(server, make_url, template):
    url = make_url(template)
    name = locate(url).url.database
    assert [found.status for found in check_database(url)] == [Status.OK]
    server.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO guarded", database=name)
    cases = {url.replace("//tuner@", "//guarded:secret@"): "GRANT", url: "it is a copy that follows another server"}
    for place, words in cases.items():
        (found,) = check_database(place)
        assert (found.status, words in found.found) == (Status.WRONG, True), found
        with pytest.raises(StoreError, match=words), Store.open(place) as store:
            store.begin_run(KNOWN["sm_90"], Environment("", "", "", "", ""), argv=[], host="")
        server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")


def test_what_reads_at_run_time_says_to_export_first(on_server, tuner, caplog, monkeypatch, tmp_path, no_tables):
    for command in ("lookup 64x64x64 --device sm_90", "bench --shape 16x16x16 --device interpreter"):
        code, out, err = tuner(f"{command} --db {on_server}")
        assert (code, out) == (1, "")
        last = err.splitlines()[-1]
        assert last.startswith("tuner: postgresql://")
        assert "tuner export DIR --db" in last
    for command in ("verify --regret", "verify --invariance", "retime --device interpreter", "warm --device sm_90"):
        code, _, err = tuner(f"{command} {on_server}")
        assert (code, err.count("\n")) == (1, 1)
        assert "tuner export DIR --db URL, then name DIR instead" in err
    code, _, err = tuner(f"export {tmp_path}/out --format sqlite --db {on_server}")
    assert (code, err.count("\n")) == (2, 1)
    monkeypatch.setenv("TUNER_DB", on_server)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            tuner("lookup 64x64x64 --device sm_90")
    assert sum("tuner export DIR --db" in record.getMessage() for record in caplog.records) >= 1


def test_no_report_comparison_or_result_of_a_contest_has_the_password(on_server, filled, tuner, tmp_path):
    pytest.importorskip("vl_convert", reason="vl-convert is not installed (pip install 'triton-tuner[report]')")
    secret = f"{on_server}&password=a-secret"
    code, _, err = tuner(f"report --db {filled} --out {tmp_path}/report.html --against {secret}")
    assert (code, "secret" in err) == (0, False)
    page = (tmp_path / "report.html").read_text()
    assert ("password=***" in page, "a-secret" in page) == (True, False)
    code, out, err = tuner(f"diff {filled} {secret} --json")
    assert (code, "password=***" in out, "secret" in out + err) == (0, True, False)
    contest = ContestReport(KNOWN["sm_90"], Environment("3.7.1", "2.13.0", "cuda 13.0", "", "3.11.7"), (), (), 0)
    assert "secret" not in str(document(contest, ["tuner", "bench", "--db", secret]))


@pytest.mark.long
def test_a_run_tunes_into_a_server_and_the_next_one_measures_nothing(make_url, tmp_path):
    pytest.importorskip("triton")
    url = make_url("blank", password="a-secret")
    command = [sys.executable, "-m", "tuner", "run", "--shape", "16x16x16", "--trials", "3", "--json", "--db", url]
    command += ["--device", "interpreter"]
    options = {"cwd": tmp_path, "env": {**os.environ, "TRITON_INTERPRET": "0"}, "timeout": 200}
    dry = subprocess.run([*command, "--dry-run"], **options, check=True, capture_output=True, text=True)
    assert json.loads(dry.stdout)[0]["to_try"] > 0
    for measured in (True, False):
        done = subprocess.run(command, **options, check=True, capture_output=True, text=True)
        (problem,) = json.loads(done.stdout)["problems"]
        assert problem["winner"] is not None
        assert bool(problem["measured"]) is measured
    dry = subprocess.run([*command, "--dry-run"], **options, check=True, capture_output=True, text=True)
    assert json.loads(dry.stdout)[0]["to_try"] == 0
    with Store.open(url, read_only=True) as store:
        assert [row.status for row in store.runs()] == ["DONE", "DONE"]
        assert "password=***" in str(store.runs()[0].argv)
        assert "secret" not in str(store.runs())
