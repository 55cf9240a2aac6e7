"""A fleet whose nodes run in this process: real sweeps over a third party's kernel, one database."""

from __future__ import annotations

import dataclasses
import importlib
import sqlite3
import sys
import threading
from contextlib import closing

import pytest

from tuner.cli.run_output import closing_table
from tuner.errors import StoreError, SweepError
from tuner.fleet import drive, queue
from tuner.fleet.drive import Driver
from tuner.fleet.ledger import Ledger, RefusedError
from tuner.fleet.messages import Delivery, Hello
from tuner.fleet.node import kernels_of
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.problem.family import ladders
from tuner.store.engine import UnavailableError
from tuner.store.records import KernelVersion, Outcome, State, Trial
from tuner.store.store import RunStatus, Store
from tuner.sweep.counted import Counted
from tuner.sweep.plan import Plan
from tuner.sweep.strategies import EXHAUSTIVE
from tuner.version import __version__

THERE = "triton 3.6.0 is there and 3.7.1 on a: make them equal, or add --mixed to tune for both"


class Watcher:
    """Keeps what it was told, and acts after so many trials, once so many nodes have joined."""

    def __init__(self, after=None, action=None, nodes=1):
        self.after, self.action, self.nodes = after, action, nodes
        self.hosts, self.left_for = [], {}

    def joined(self, ledger, node):
        self.hosts.append(ledger.members[node].host)

    def delivered(self, ledger, node, delivery):
        if self.action is None or len(self.hosts) < self.nodes:
            return
        if sum(member.trials for member in ledger.members.values()) >= self.after:
            self.action, act = None, self.action
            act(ledger, node)

    def left(self, ledger, node):
        self.left_for[ledger.members[node].host] = ledger.members[node].ended


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "tuner.db")) as store, store.sole_writer():
        yield store


def tune(store, cluster, problems, *, watcher=None, stop=None, plan=None, **options):
    """Tune on a cluster; returns the ledger and the reports."""
    plan, stop = plan or Plan(EXHAUSTIVE), stop or threading.Event()
    found = Ledger(store, lambda _device: problems, kernels_of(["faulty"]), counted=plan.counted(store), **options)
    driver = Driver(cluster, found, plan, watcher or Watcher(), stop)
    driver.work((["faulty"], ()), interpreted=True)
    return found, found.reports(interrupted=stop.is_set(), seconds=1.0, deserted=driver.deserted)


def stored(store):
    """How often each (problem, config) has a trial."""
    counted: dict = {}
    for trial in store.trials():
        counted[trial.problem, trial.config] = counted.get((trial.problem, trial.config), 0) + 1
    return counted


def statuses(store):
    with closing(sqlite3.connect(store.location)) as connection:
        return sorted(status for (status,) in connection.execute("SELECT status FROM run"))


def test_each_problem_is_tuned_once_by_one_of_the_nodes(faulty, store, cluster):
    problems = [faulty(m, configs=3) for m in range(16, 16 + 12)]
    found, (report,) = tune(store, cluster("a", "b"), problems)
    assert stored(store) == dict.fromkeys(stored(store), 1)
    assert len(stored(store)) == 36
    assert {each.problem for each in report.problems if each.winner} == set(problems)
    assert {winner.problem for winner in store.winners()} == set(problems)
    assert sum(member.problems for member in found.members.values()) == 12
    assert statuses(store) == ["DONE", "DONE"]
    assert not report.untried
    _, (again,) = tune(store, cluster("c"), problems)
    assert {each.reason for each in again.problems} == {"already tuned"}
    assert len(store.trials()) == 36


@pytest.mark.long
def test_a_fleet_that_measures_again_counts_what_a_run_and_later_ones_measured(faulty, store, cluster):
    problems = [faulty(m, configs=2) for m in (16, 17, 18)]
    tune(store, cluster("a"), problems)
    tune(store, cluster("b"), problems[:2], plan=Plan(EXHAUSTIVE, fresh=True))
    newest, *_ = store.runs()
    _, (report,) = tune(store, cluster("c"), problems, plan=Plan(EXHAUSTIVE, fresh=True, fresh_since=newest.uuid))
    assert {each.problem: each.measured for each in report.problems} == dict(zip(problems, (0, 0, 2), strict=True))
    assert [stored(store)[key] for key in stored(store)] == [2] * 6
    assert report.undecided_count == 0


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.long
def test_what_a_lost_node_stored_is_known_and_the_rest_goes_to_another(faulty, store, cluster, fresh):
    problems = [faulty(m, configs=6, sleep_ms=4) for m in range(16, 20)]
    if fresh:
        tune(store, cluster("before"), problems[:1])
    here = cluster("a")

    def lose(_ledger, _node):
        here.up = {"b": dataclasses.replace(here.up["a"], host="b")}

    watcher = Watcher(2, lose)
    _, (report,) = tune(store, here, problems, watcher=watcher, plan=Plan(EXHAUSTIVE, fresh=fresh))
    assert watcher.hosts == ["a", "b"]
    assert watcher.left_for == {"a": "the machine is gone", "b": ""}
    assert {each.problem for each in report.problems if each.winner} == set(problems)
    assert len(report.problems) == 4
    # Of the first problem each config was measured once before this fleet, and once by one of its two nodes.
    assert stored(store) == {key: 1 + (fresh and key[0] == problems[0]) for key in stored(store)}
    assert len(stored(store)) == 24
    assert statuses(store) == ["DONE"] * (1 + fresh) + ["FAILED"]


def test_under_fresh_a_node_is_told_what_a_dead_one_of_its_fleet_measured_and_nothing_older(faulty, store):
    problem, kernel = faulty(), KernelVersion("faulty", "faulty", 1, "hash")
    hello = Hello("a", 1, KNOWN["sm_90"], Environment("3.7.1", "2.13.0", "", "", "3.11"), __version__, {})
    older, measured = (Config("faulty", n=n) for n in (1, 2))
    outcome = Outcome(State.COMPLETE, median_us=1.0)
    before = store.begin_run(hello.device, hello.environment, argv=[], host="h")
    store.record(before, [Trial(problem, older, kernel, outcome)])
    store.end_run(before, RunStatus.DONE)
    fleet = Ledger(store, lambda _device: [problem], {}, counted=Counted(frozenset()))
    store.record(fleet.join("dies", hello, 0.0), [Trial(problem, measured, kernel, outcome)])
    fleet.leave("dies", "the machine is gone")
    fleet.join("lives", hello, 0.0)
    question = ("settled", (hello.device, hello.environment, problem, (kernel,)), {})
    fleet.take({"lives": Delivery(question=question)}, threading.Event(), 0.0)
    assert set(fleet.orders("lives", 0.0, stop=False).answer.value) == {measured}


@pytest.mark.long
def test_a_process_that_is_killed_is_started_again_on_its_machine(faulty, store, cluster, monkeypatch):
    monkeypatch.setattr(drive, "LOOK_S", 0.1)
    here = cluster("a")
    problems = [faulty(m, configs=6, sleep_ms=2) for m in range(16, 19)]
    watcher = Watcher(2, lambda _ledger, node: here.killed.add(node))
    _, (report,) = tune(store, here, problems, watcher=watcher)
    assert watcher.hosts == ["a", "a"]
    assert {each.problem for each in report.problems if each.winner} == set(problems)
    assert stored(store) == dict.fromkeys(stored(store), 1)
    assert len(stored(store)) == 18


def test_a_fleet_without_a_node_left_says_so_and_not_that_its_time_is_spent(
    faulty, store, cluster, monkeypatch, capsys
):
    monkeypatch.setattr(drive, "NOBODY_S", 0.5)
    here = cluster("a")
    watcher = Watcher(1, lambda *_: here.up.clear())
    _, (report,) = tune(store, here, [faulty(m, configs=6, sleep_ms=20) for m in range(16, 28)], watcher=watcher)
    assert watcher.left_for == {"a": "the machine is gone"}
    assert report.untried
    assert report.deserted
    assert not report.is_spent
    closing_table(report)
    said = f"no node is left: {report.undecided_count} problems without a winner; every trial is kept"
    assert said in capsys.readouterr().err


def test_a_kernel_that_ends_the_process_ends_its_node_and_says_so(faulty, store, cluster, monkeypatch):
    faulty_kernels = importlib.import_module("faulty_kernels")
    ends = dataclasses.replace(faulty_kernels.SPEC, simplicity=lambda _config: sys.exit("enough"))
    monkeypatch.setattr(faulty_kernels, "SPEC", ends)
    monkeypatch.setattr(drive, "MAX_STARTS", 1)
    monkeypatch.setattr(drive, "NOBODY_S", 0.1)
    watcher = Watcher()
    _, (report,) = tune(store, cluster("a"), [faulty()], watcher=watcher)
    assert watcher.left_for == {"a": "SystemExit: enough"}
    assert report.deserted


def test_a_node_that_never_answers_is_refused_in_one_line(faulty, store, cluster, monkeypatch):
    here = cluster("a")
    here.hung.add("a")
    monkeypatch.setattr(drive, "HELLO_S", 1.0)
    found = Ledger(store, lambda _device: [faulty()], kernels_of(["faulty"]))
    driver = Driver(here, found, Plan(EXHAUSTIVE), Watcher(), threading.Event())
    with pytest.raises(SweepError, match="a: no answer for 1 s: another job holds its GPUs, or it cannot reach this"):
        driver.work((["faulty"], ()), interpreted=True)


def test_a_process_that_dies_while_it_starts_is_started_again_and_then_left_alone(faulty, store, cluster, monkeypatch):
    monkeypatch.setattr(drive, "LOOK_S", 0.3)
    here, started = cluster("a"), []

    class Dying(dict):
        def __contains__(self, node):
            started.append(node)
            return True

    here.killed = Dying()
    with pytest.raises(SweepError, match="takes part: a: its process ended 3 times: it is left alone"):
        tune(store, here, [faulty()])
    assert len(started) == drive.MAX_STARTS


def test_a_ladder_is_tuned_whole_by_one_node_and_known_the_next_time(faulty, store, cluster):
    (ladder,) = ladders(range(14, 18), lambda m: faulty(m, configs=2))
    alone = faulty(40, configs=2)
    found, (report,) = tune(store, cluster("a", "b"), [alone, *ladder.rungs, ladder])
    assert [family.problem for family in report.families] == [ladder.family]
    assert [each.family.problem for each in store.families()] == [ladder.family]
    assert not report.undecided_count
    assert stored(store) == dict.fromkeys(stored(store), 1)
    of_ladder = {trial.problem for trial in store.trials()} - {alone}
    assert {*ladder.rungs} <= of_ladder
    assert sum(member.problems for member in found.members.values()) == 1 + len(of_ladder)
    with closing(sqlite3.connect(store.location)) as connection:
        query = "SELECT count(DISTINCT run_id) FROM trial JOIN problem USING (problem_id) WHERE m < 40"
        assert connection.execute(query).fetchone() == (1,)
    before = len(store.trials())
    tune(store, cluster("c"), [ladder])
    assert (len(store.trials()), len(store.families())) == (before, 1)


@pytest.mark.long
def test_a_node_that_is_silent_loses_its_work(faulty, store, cluster, monkeypatch):
    for module in (drive, queue):
        monkeypatch.setattr(module, "LEASE_S", 1.5)
    here = cluster("a", "b")
    watcher = Watcher(1, lambda ledger, node: here.hung.add(ledger.members[node].host))
    problems = [faulty(m, configs=4, sleep_ms=4) for m in range(16, 26)]
    _, (report,) = tune(store, here, problems, watcher=watcher)
    (silent,) = here.hung
    assert watcher.left_for[silent].startswith("it was silent for")
    assert {each.problem for each in report.problems if each.winner} == set(problems)


@pytest.mark.long
def test_stopping_finishes_the_trials_under_way_and_the_same_command_goes_on(faulty, store, cluster):
    problems = [faulty(m, configs=6, sleep_ms=20) for m in range(16, 28)]
    stop = threading.Event()
    watcher = Watcher(4, lambda *_: stop.set(), nodes=2)
    _, (report,) = tune(store, cluster("a", "b"), problems, watcher=watcher, stop=stop)
    assert report.interrupted
    assert report.untried
    assert statuses(store) == ["INTERRUPTED", "INTERRUPTED"]
    kept = stored(store)
    assert 4 <= len(kept) < 72
    _, (report,) = tune(store, cluster("a", "b"), problems)
    assert not report.undecided_count
    assert stored(store) == dict.fromkeys(stored(store), 1)
    assert len(stored(store)) == 72


def test_stopping_before_any_node_takes_part_is_an_interrupt(faulty, store, cluster):
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        tune(store, cluster("a"), [faulty()], stop=stop)
    assert statuses(store) == []


def test_stopping_while_the_server_is_away_is_an_interrupt(faulty, store, cluster, monkeypatch, caplog):
    stop = threading.Event()

    def away(*_rows, **_options):
        stop.set()
        raise UnavailableError("no server answers there")

    monkeypatch.setattr(store, "record_rows", away)
    with pytest.raises(KeyboardInterrupt):
        tune(store, cluster("a"), [faulty()], stop=stop)
    assert "no server answers there: what was not stored is measured again by the same command" in caplog.text
    assert statuses(store) == ["INTERRUPTED"]


@pytest.mark.long
def test_a_time_budget_ends_every_node_and_leaves_the_rest(faulty, store, cluster):
    problems = [faulty(m, configs=6, sleep_ms=100) for m in range(16, 66)]
    _, (report,) = tune(store, cluster("a", "b"), problems, plan=Plan(EXHAUSTIVE, time_budget_s=12.0))
    assert report.is_spent
    assert len({*report.untried, *(each.problem for each in report.problems)}) == 50
    assert len(report.untried) + len(report.problems) == 50


def test_a_machine_that_still_starts_when_the_time_is_over_is_not_waited_for(faulty, store, cluster):
    here = cluster("a", "b")
    here.hung.add("b")  # for five seconds
    watcher, plan = Watcher(), Plan(EXHAUSTIVE, time_budget_s=1.0)
    _, (report,) = tune(
        store, here, [faulty(m, configs=6, sleep_ms=100) for m in range(16, 66)], watcher=watcher, plan=plan
    )
    assert watcher.hosts == ["a"]
    assert report.is_spent


def on_another_driver(hello):
    return dataclasses.replace(hello, environment=dataclasses.replace(hello.environment, driver="580.1"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "0.0.9"}, "triton-tuner 0.0.9 is there and"),
        ({"kernels": {"faulty.faulty": "2 abc"}}, r"its kernels differ from those here \(faulty.faulty\)"),
        ({"environment": Environment("3.6.0", "2.13.0", "cuda 13.0", "580.1", "3.11.7")}, THERE),
    ],
)
def test_a_node_with_other_versions_is_refused_and_nothing_of_it_is_stored(faulty, store, change, said):
    found = Ledger(store, lambda _device: [faulty()], kernels_of(["faulty"]))
    environment = Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7")
    first = Hello("a", 8, KNOWN["sm_90"], environment, __version__, kernels_of(["faulty"]))
    found.join("1", first, 0.0)
    with pytest.raises(RefusedError, match=said):
        found.join("2", dataclasses.replace(first, host="b", **change), 0.0)
    assert found.working == ["1"]
    assert statuses(store) == ["RUNNING"]


def test_a_node_of_another_gpu_model_has_a_queue_of_its_own(faulty, store):
    found = Ledger(store, lambda device: [faulty(configs=int(device.arch[3:]))], kernels_of(["faulty"]))
    for arch in ("sm_90", "sm_100"):
        environment = Environment("3.7.1", "2.13.0", "cuda 13.0", arch, "3.11.7")
        found.join(arch, Hello(arch, 8, KNOWN[arch], environment, __version__, kernels_of(["faulty"])), 0.0)
    given = [found.orders(arch, 0.0, stop=False).items for arch in ("sm_90", "sm_100")]
    assert given == [(faulty(configs=90),), (faulty(configs=100),)]


@pytest.mark.long
def test_mixed_nodes_are_tuned_as_the_environments_they_are(faulty, store, cluster):
    here = cluster("a", "b")
    here.as_if["b"] = on_another_driver
    problems = [faulty(m, configs=2) for m in (16, 17)]
    _, reports = tune(store, here, problems, mixed=True)
    assert {report.environment.driver for report in reports} == {"", "580.1"}
    assert all({each.problem for each in report.problems if each.winner} == set(problems) for report in reports)
    assert len(store.winners()) == 4


def test_a_cluster_that_nobody_can_tune_on_is_one_error(faulty, store, cluster, monkeypatch):
    here = cluster("a")
    here.up = {"a": dataclasses.replace(here.up["a"], gpus=0)}
    found = Ledger(store, lambda _device: [faulty()], kernels_of(["faulty"]))
    driver = Driver(here, found, Plan(EXHAUSTIVE), Watcher(), threading.Event())
    with pytest.raises(SweepError, match="no machine of the cluster takes part: a: Ray counts no GPU there"):
        driver.work((["faulty"], ()), interpreted=False)


@pytest.mark.long
def test_what_cannot_be_stored_costs_its_node_and_no_other(faulty, store, cluster, monkeypatch):
    problems = [faulty(m, configs=3) for m in range(16, 24)]
    record = Store.record_rows
    bad: list = []

    def refuse(self, run, trials):
        bad.append(run.id) if not bad else None
        if run.id == bad[0]:
            raise StoreError("this run is cursed")
        record(self, run, trials)

    monkeypatch.setattr(Store, "record_rows", refuse)
    found, (report,) = tune(store, cluster("a", "b"), problems)
    assert "this run is cursed" in [member.ended for member in found.members.values()]
    assert {each.problem for each in report.problems if each.winner} == set(problems)
