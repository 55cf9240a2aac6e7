"""Runs that share a server's database measure each problem once, whoever of them dies."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from sqlalchemy import func, select, update

from tuner.hardware.device import KNOWN, Environment
from tuner.problem import Problem
from tuner.problem.family import Family, Range, ladders
from tuner.store import models, runs
from tuner.store.store import RunStatus, Store
from tuner.sweep import shared_agenda
from tuner.sweep.agenda import Agenda
from tuner.sweep.counted import Counted
from tuner.sweep.ladder import Result
from tuner.sweep.shared_agenda import SharedAgenda

PROGRAM = """
import sys
from tuner.store import runs
from tuner.sweep import loop
runs.DEAD_AFTER_S, loop.HEARTBEAT_S = {dead_after_s}, 0.5
from tuner.cli import main
main(sys.argv[1:])
"""
SHAPES = tuple(f"16x{n}x16" for n in (16, 32, 48, 64, 80))
LADDER = "1-3x16x16"
ENVIRONMENT = Environment("3.7.1", "2.13.0", "", "", "3.11")
H200, B200 = KNOWN["sm_90"], KNOWN["sm_100"]
PROBLEM = Problem(16, 16, 16)


@pytest.fixture
def start():
    """Start a `tuner run` under the interpreter, which ends with the test."""
    started = []

    def start(url: str, *shapes: str, dead_after_s: float = 60) -> subprocess.Popen[str]:
        words = [word for shape in shapes for word in ("--shape", shape)]
        options = ["--trials", "4", "--device", "interpreter", "--json", "--db", url]
        command = [sys.executable, "-c", PROGRAM.format(dead_after_s=dead_after_s), "run", *words, *options]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=60)


def ended(process: subprocess.Popen[str]) -> tuple[dict, str]:
    """What a run that must be done printed."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return json.loads(out), err


def by_run(url: str) -> list[set[tuple[Problem, object]]]:
    """The trials of each run."""
    found: dict[str, set[tuple[Problem, object]]] = {}
    with Store.open(url, read_only=True) as store:
        for row in store.trials():
            found.setdefault(row.run, set()).add((row.problem, row.config))
    return list(found.values())


def claims(url: str, *, begun: bool = False) -> int:
    with Store.open(url, read_only=True) as store, store._reading() as connection:
        return connection.execute(
            select(func.count(models.claim.c.claim_id)).where(models.claim.c.begun | (not begun))
        ).scalar()


@pytest.mark.long
def test_two_runs_share_the_problems_and_each_is_measured_by_one(url, start):
    reports = [ended(process)[0] for process in [start(url, *SHAPES), start(url, *reversed(SHAPES))]]
    first, second = by_run(url)
    assert not {problem for problem, _ in first} & {problem for problem, _ in second}
    for report in reports:
        assert len(report["problems"]) == len(SHAPES)
        assert all(problem["winner"] for problem in report["problems"])
    assert sum(problem["measured"] for report in reports for problem in report["problems"]) == len(first | second)
    assert claims(url) == 0


@pytest.mark.long
def test_a_ladder_is_climbed_by_one_run_and_known_to_the_other(url, start):
    reports = [ended(process)[0] for process in [start(url, LADDER), start(url, LADDER)]]
    assert len(by_run(url)) == 1
    assert sorted(len(report["families"]) for report in reports) == [0, 1]
    assert claims(url) == 0


@pytest.mark.long
def test_what_a_killed_run_had_is_taken_over_and_said_to_be_waited_for(url, start):
    shapes = [f"16x{16 * n}x16" for n in range(1, 11)]
    first = start(url, *shapes)
    while not by_run(url):
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    report, err = ended(start(url, *shapes, dead_after_s=40))
    assert err.count("measured by other runs (on ") == 1
    assert all(problem["winner"] for problem in report["problems"])
    assert len(report["problems"]) == len(shapes)
    of_first, of_second = by_run(url)
    assert not of_first & of_second
    assert claims(url) == 0


@pytest.mark.long
def test_ctrl_c_ends_the_wait_for_another_run(url, start):
    first = start(url, SHAPES[0])
    while not claims(url, begun=True):
        time.sleep(0.05)
    first.send_signal(signal.SIGSTOP)
    second = start(url, SHAPES[0])
    while "measured by other runs (on " not in (line := second.stderr.readline()):
        assert line, "it ended"
    second.send_signal(signal.SIGINT)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 130, err
    first.send_signal(signal.SIGCONT)
    assert ended(first)[0]["problems"][0]["winner"]


def begin(store: Store, device=H200, environment=ENVIRONMENT):
    return store.begin_run(device, environment, argv=[], host="node1")


def test_a_problem_is_claimed_by_one_living_run_and_free_after_it(url):
    with Store.open(url) as store:
        first, second = begin(store), begin(store)
        assert store.claim(first, PROBLEM)
        assert store.claim(first, PROBLEM), "again after a commit whose answer was lost"
        assert not store.claim(second, PROBLEM)
        assert store.claimed_by_others(second, [PROBLEM]) == {PROBLEM: ("node1", False)}
        store.release(second, [PROBLEM])
        assert not store.claim(second, PROBLEM), "one's own are released alone"
        store.end_run(first, RunStatus.INTERRUPTED)
        assert store.claim(second, PROBLEM)
        third = begin(store)
        long_ago = (
            update(models.run).where(models.run.c.run_id == second.id).values(heartbeat_at="2020-01-01T00:00:00Z")
        )
        with store._writing() as connection:
            connection.execute(long_ago)
        assert store.claim(third, PROBLEM), "second is silent"
        assert not store.begin_claimed(second, PROBLEM)


def test_a_run_is_relieved_of_what_it_has_not_begun_and_of_nothing_else(url):
    with Store.open(url) as store:
        first, second = begin(store), begin(store)
        assert store.claim(first, PROBLEM)
        assert store.claim(second, PROBLEM, begin=True)
        assert not store.begin_claimed(first, PROBLEM)
        assert not store.claim(first, PROBLEM, begin=True), "nothing goes back and forth"


def test_runs_that_begin_at_once_do_not_each_keep_a_ladder_that_the_other_waits_for(url, monkeypatch):
    monkeypatch.setattr(shared_agenda, "PAUSE_S", 0.0)
    listed = [ladders(range(1, last + 1), lambda m: Problem(m, 16, 16))[0] for last in (2, 3)]
    with Store.open(url) as store:
        first, second = (SharedAgenda(store, begin(store), Agenda([], listed)) for _ in range(2))
        claim, taken = store.claim, []

        def claim_one(*words, **options):
            """Claim what the first run asks for first; before it goes on, the second claims all that it can."""
            monkeypatch.setattr(store, "claim", claim)
            has_it = claim(*words, **options)
            taken.extend(iter(second.take, None))
            return has_it

        monkeypatch.setattr(store, "claim", claim_one)
        for _ in range(10):
            for agenda in (first, second):
                for step in [*taken, *iter(agenda.take, None)]:
                    if agenda.begin(step.problem):
                        agenda.ended(step.problem, Result(None), ())
                        agenda.release(step.problem)
                taken.clear()
                if agenda.is_waiting:
                    agenda.look_again(1)
        assert (first.problems, second.problems) == ([], [])


def test_a_run_that_waits_counts_the_run_that_it_waits_for_and_its_families(url, monkeypatch):
    monkeypatch.setattr(shared_agenda, "PAUSE_S", 0.0)
    (ladder,) = ladders(range(1, 3), lambda m: Problem(m, 16, 16))
    with Store.open(url) as store:
        past, first = begin(store), begin(store)
        counted, agenda = Counted(frozenset({first.id}), first.uuid), Agenda([], [ladder])
        waits, other = SharedAgenda(store, first, agenda, counted), begin(store)
        known = []
        monkeypatch.setattr(agenda, "know", known.extend)
        for run in (past, other):
            store.record_family(run, Family(ladder.family, (Range(1, 2, 2, "measured"),)))
            waits.know_families()
        assert known == []
        assert store.claim(other, ladder.at(ladder.last_m), begin=True)
        assert waits.take() is None
        store.release(other, [ladder.at(ladder.last_m)])
        waits.look_again(1)
        assert counted.ids == {first.id, other.id}
        assert [each.run_id for each in known] == [other.id]
        assert waits.take() is not None


@pytest.mark.parametrize("other", [(B200, ENVIRONMENT), (H200, Environment("3.6.0", "2.13.0", "", "", "3.11"))])
def test_runs_of_other_devices_and_environments_do_not_wait_for_each_other(url, other):
    with Store.open(url) as store:
        first, second = begin(store), begin(store, *other)
        assert store.claim(first, PROBLEM, begin=True)
        assert store.claimed_by_others(second, [PROBLEM]) == {}
        assert store.claim(second, PROBLEM, begin=True)


def test_a_run_that_outlasted_its_server_is_not_taken_for_dead_before_it_can_be_heard(server, url, monkeypatch):
    monkeypatch.setattr(runs, "DEAD_AFTER_S", 1.0)
    with Store.open(url) as store:
        first, second = begin(store), begin(store)
        assert store.claim(first, PROBLEM)
        server.end()
        time.sleep(3)
        server.start()
    with Store.open(url) as store:
        assert not store.claim(second, PROBLEM)
        time.sleep(3)
        assert store.claim(second, PROBLEM), "now it had the time"
