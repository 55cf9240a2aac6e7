"""A server that goes away in the middle of a run costs waiting: each trial is stored once, whoever is killed when."""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import func, select

from tuner.cli import main
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.problem.family import Family, Range
from tuner.store import models
from tuner.store import server as server_module
from tuner.store.engine import locate
from tuner.store.records import KernelVersion, Outcome, Resources, State, Trial, Verdict
from tuner.store.store import RunStatus, Store

ENVIRONMENT = Environment("3.7.1", "2.13.0", "", "", "3.11")
KERNEL = KernelVersion("matmul", "pointer", 1, "hash")
RUN = ("run", "--shape", "16x16x16", "--shape", "32x16x16", "--shape", "32x32x16", "--trials", "16", "--json")
WRITER = """
import sys, itertools
sys.path.insert(0, {folder!r})
from test_server_away import begin, trial
from tuner.store.store import Store
with Store.open({url!r}) as store:
    run = begin(store)
    for number in itertools.count(1):
        store.record(run, [trial(number)])
        print(number, flush=True)
"""


def trial(number: int) -> Trial:
    outcome = Outcome(
        State.COMPLETE, median_us=float(number), error=float("nan"), resources=Resources(registers=number)
    )
    return Trial(Problem(16, 16, 16 * number, epilogue="bias"), Config("pointer", n=number), KERNEL, outcome)


def begin(store):
    run = store.begin_run(KNOWN["sm_90"], ENVIRONMENT, argv=[], host="h")
    store.survive_outages(run)
    return run


def rows(url: str, table) -> int:
    with Store.open(url, read_only=True) as store, store._reading() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar()


def start(url: str, constants: str = "") -> subprocess.Popen[str]:
    program = (
        f"import sys; from tuner.store import outage, runs, server; {constants or 0};"
        "from tuner.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", program, *RUN, "--device", "interpreter", "--db", url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_trials(server, url: str, more_than: int, table: str = "trial") -> int:
    """Wait until a database has more trials than that, or rows of another table.

    It is not opened as a store, which would replay spools.
    """
    name = locate(url).url.database
    for _ in range(1000):
        with psycopg.connect(f"host={server.folder} user=tuner dbname={name}", connect_timeout=10) as connection:
            (found,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        if found > more_than:
            return found
        time.sleep(0.05)
    pytest.fail("the run stores nothing")


def safe(server, url: str) -> str:
    """Have a database keep what it acknowledged even when its server crashes; the others of the tests need not."""
    server.execute(f"ALTER DATABASE {locate(url).url.database} SET synchronous_commit = on")
    return url


@pytest.mark.long
def test_a_server_that_restarts_three_times_costs_two_runs_that_share_it_nothing_but_time(server, url, state):
    processes, found = [start(safe(server, url)), start(url)], 0
    wait_for_trials(server, url, 1, "run")
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGINT):
        found = wait_for_trials(server, url, found)
        server.end(number)
        time.sleep(1)
        server.start()
    measured = 0
    for process in processes:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        assert "Traceback" not in err
        assert err.count("the database does not answer, ") == err.count("the database answers again") <= 3
        problems = json.loads(out)["problems"]
        assert len(problems) == 3
        assert all(problem["winner"] for problem in problems)
        measured += sum(problem["measured"] for problem in problems)
    trials = [trial for of_run in stored(url).values() for trial in of_run]
    assert len(trials) == len(set(trials)) == measured == rows(url, models.trial)
    assert rows(url, models.winner) == 3
    assert list(state.iterdir()) == []


def in_spool(path: Path) -> set[str]:
    """The trials of a spool, each by its problem's M, N and K and its config."""
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    shapes = [(each["problem"]["m"], each["problem"]["n"], each["problem"]["k"]) for each in lines]
    return {str((shape, Config.from_json(*each["config"]))) for shape, each in zip(shapes, lines, strict=True)}


def stored(url: str) -> dict[str, list[str]]:
    """The trials of each run."""
    found: dict[str, list[str]] = {}
    with Store.open(url, read_only=True) as store:
        for row in store.trials():
            found.setdefault(row.run, []).append(str((row.problem.shape, row.config)))
    return found


@pytest.mark.long
def test_a_run_killed_while_its_server_is_away_is_gone_on_with_from_its_spool(server, url, state):
    process = start(safe(server, url))
    wait_for_trials(server, url, 0)
    server.end()
    (spool,) = state.iterdir()
    for _ in range(1000):
        if spool.read_bytes().count(b"\n") > 2:
            break
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=60)
    kept = in_spool(spool)
    server.start()
    before = wait_for_trials(server, url, 0)
    process = start(url, "runs.DEAD_AFTER_S = 5")  # whose problems it takes over
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert err.count(f"stored {len(kept)} trials that an earlier run left in {spool}\n") == 1
    found = stored(url)
    first = found.pop(spool.stem)
    assert kept <= set(first)
    assert before < len(first) == len(set(first)) <= before + len(kept)
    (second,) = found.values()
    assert not set(first) & set(second), "nothing is measured again"
    assert len(second) == sum(problem["measured"] for problem in json.loads(out)["problems"])
    assert list(state.iterdir()) == []


@pytest.mark.long
def test_a_run_gives_up_in_the_end_and_any_command_stores_what_it_kept(server, url, state, capfd, tmp_path):
    process = start(safe(server, url), "outage.LIMIT_S = 1")
    wait_for_trials(server, url, 0)
    server.end()
    out, err = process.communicate(timeout=100)
    server.start()
    assert (process.returncode, out) == (1, "")
    assert "Traceback" not in err
    assert len(re.findall("^tuner: postgresql://.*: no server answers there: ", err, re.MULTILINE)) == 1, err
    (spool,) = state.iterdir()
    text, kept = spool.read_text(), in_spool(spool)
    assert f"{len(kept)} trials kept in {spool}: the next command on this database stores what is there" in err
    for command in ("db check --db", "show trials --db", f"merge {tmp_path}/other.db"):
        spool.write_text(text)
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), url])
        assert ended.value.code == 0, capfd.readouterr()
        assert list(state.iterdir()) == []
        (first,) = stored(url).values()
        assert kept <= set(first)
        assert len(first) == len(set(first))


@pytest.mark.long
def test_ctrl_c_does_not_wait_for_a_server_that_is_away(server, url, state):
    process = start(url)
    wait_for_trials(server, url, 0)
    server.end()
    try:
        while "does not answer" not in (line := process.stderr.readline()):
            assert line, "it ended"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=100)
    finally:
        server.start()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    (spool,) = state.iterdir()
    assert f"kept in {spool}: the next command on this database stores what is there" in err
    assert err.endswith("interrupted\n")


@pytest.mark.parametrize("call", ["winners", "runs_since"])
def test_a_call_that_waits_for_a_server_that_is_away_ends_where_ctrl_c_is_pressed(server, url, caplog, call):
    stop = threading.Event()
    with Store.open(url) as store:
        run = store.begin_run(KNOWN["sm_90"], ENVIRONMENT, argv=[], host="h")
        store.survive_outages(run, stop)
        server.end()
        try:
            store.record(run, [trial(1)])
            pressed = threading.Timer(0.3, stop.set)
            pressed.start()
            with pytest.raises(KeyboardInterrupt):
                getattr(store, call)(*([run.uuid] if call == "runs_since" else []))
            pressed.join()
            store.end_run(run, RunStatus.INTERRUPTED)
        finally:
            server.start()
    assert "1 trial kept in " in caplog.text
    with Store.open(url) as store:
        assert [row.status for row in store.runs()] == [RunStatus.RUNNING], "until it counts as dead"


@pytest.mark.long
def test_a_run_outlasts_a_server_that_is_stopped_in_the_middle_of_whatever_it_does(server, url, state):
    process = start(f"{url}&connect_timeout=2", "server.SILENCE_S = 0.5")
    for _ in range(2):
        wait_for_trials(server, url, 0)
        with server.stopped():
            time.sleep(6)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert 0 < err.count("the database does not answer, ") == err.count("the database answers again") <= 2
    assert rows(url, models.trial) == sum(problem["measured"] for problem in json.loads(out)["problems"])
    assert list(state.iterdir()) == []


@pytest.mark.long
def test_writers_killed_at_any_moment_while_the_server_restarts_lose_nothing_that_they_acknowledged(server, url, state):
    chance, total = random.Random(0), 0
    safe(server, url)
    for attempt in range(8):
        text = WRITER.format(folder=str(Path(__file__).parent), url=url)
        writer = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
        assert writer.stdout.readline() == "1\n"
        time.sleep(chance.uniform(0, 0.5))
        if attempt % 2:
            server.end(chance.choice([signal.SIGINT, signal.SIGQUIT]))
            time.sleep(chance.uniform(0, 0.5))
        writer.kill()
        acknowledged = max(1, *map(int, writer.communicate(timeout=60)[0].split()))
        if attempt % 2:
            server.start()
        with Store.open(url) as store:
            newest = max(store.runs(), key=lambda run: run.run_id)
            assert acknowledged <= newest.trials <= acknowledged + 1
            total += newest.trials
            assert store.count_trials() == total
        assert list(state.iterdir()) == []


def test_a_commit_whose_answer_is_lost_is_not_repeated(url, state, monkeypatch):
    """The server does what it was asked, and the connection ends before it can say so."""
    commit = server_module._Connection.commit
    lost = []

    def commit_and_lose(self):
        commit(self)
        if not lost:
            lost.append(1)
            self.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    family = Family(trial(1).problem.group(), (Range(1, 16, 16, "measured"),))
    verdict = Verdict(trial(1).config, 1.0, None, None, (trial(1).config,))
    with Store.open(url) as store:
        run = begin(store)
        monkeypatch.setattr(server_module._Connection, "commit", commit_and_lose)
        for write in (
            lambda: store.record(run, [trial(1), trial(2)]),
            lambda: store.decide(run, trial(1).problem, KERNEL, verdict),
            lambda: store.record_family(run, family),
            lambda: store.end_run(run, RunStatus.DONE),
        ):
            lost.clear()
            write()
            store.winners()  # what was kept is stored before anything is read
            assert lost
    assert [rows(url, table) for table in (models.trial, models.winner, models.family)] == [2, 1, 1]
    assert list(state.iterdir()) == []


def test_what_is_read_back_from_a_spool_is_what_was_measured(server, url, state, caplog):
    with Store.open(url) as store:
        begun = begin(store)
        server.end()
        store.record(begun, [trial(1), trial(2)])
        (spool,) = state.iterdir()
        server.start()
        with Store.open(url) as other:
            assert other.count_trials() == 0, "the run lives, so its spool is its own"
    assert f"2 trials kept in {spool}: the next command on this database stores what is there" in caplog.text
    with spool.open("a") as file:
        file.write('{"problem": ')  # a kill in the middle of a line
    with Store.open(url) as store:
        found = {row.config: row.outcome for row in store.trials()}
        assert len(store.runs()) == 1
    assert not spool.exists()
    expected = [trial(1), trial(2)]
    assert found == {each.config: replace(each.outcome, error=None) for each in expected}, "NaN is NULL"


def test_a_spool_of_another_database_or_that_is_damaged_stays(server, make_url, url, state, caplog):
    with Store.open(url) as store:
        run = begin(store)
        server.end()
        store.record(run, [trial(1)])
    server.start()
    (spool,) = state.iterdir()
    kept = spool.read_text()
    Store.open(make_url()).close()
    assert spool.read_text() == kept
    assert "could not be stored" not in caplog.text
    for damaged in (kept.replace('"config":', '"conf":'), "{}\n" + kept, kept.replace('"run":"', '"run":"0')):
        spool.write_text(damaged)
        caplog.clear()
        Store.open(url).close()
        (record,) = caplog.records
        assert str(spool) in record.getMessage()
        assert spool.read_text() == damaged
    assert rows(url, models.trial) == 0


def test_a_disk_without_room_for_the_spool_is_told_once_and_the_server_gets_the_trials(url, state, caplog):
    state.parent.mkdir(parents=True)
    state.write_text("a file where the folder should be")
    with Store.open(url) as store:
        run = begin(store)
        for number in (1, 2):
            store.record(run, [trial(number)])
        store.end_run(run, RunStatus.DONE)
        assert store.count_trials() == 2
    assert caplog.text.count("cannot be written") == 1


def test_trials_that_neither_the_server_nor_the_disk_took_are_said_to_be_lost(server, url, state, caplog):
    state.parent.mkdir(parents=True)
    state.write_text("a file where the folder should be")
    with Store.open(url) as store:
        run = begin(store)
        server.end()
        store.record(run, [trial(1)])
        assert "1 trial kept in memory, trying again" in caplog.text
        store.record(run, [trial(2)])
        caplog.clear()
    server.start()
    assert "2 trials lost: neither it nor " in caplog.text
    assert "kept in" not in caplog.text


def test_a_disk_with_room_again_at_the_end_of_a_run_keeps_what_the_server_did_not_take(server, url, state, caplog):
    state.parent.mkdir(parents=True)
    state.write_text("a file where the folder should be")
    with Store.open(url) as store:
        run = begin(store)
        server.end()
        store.record(run, [trial(1)])
        state.unlink()
    (spool,) = state.iterdir()
    assert len(in_spool(spool)) == 1
    assert f"1 trial kept in {spool}: the next command on this database stores what is there" in caplog.text
    server.start()
    assert len(stored(url)[run.uuid]) == 1


def test_a_disk_that_fills_up_in_the_middle_of_a_line_leaves_a_spool_without_half_a_line(server, url, state, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Store.open(url) as store:
        run = begin(store)
        server.end()
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
            store.record(run, [trial(1)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        (spool,) = state.iterdir()
        assert spool.read_bytes() == b""
        store.record(run, [trial(2)])
        assert len(in_spool(spool)) == 2
        server.start()
    assert caplog.text.count("cannot be written") == 1
    assert len(stored(url)[run.uuid]) == 2
