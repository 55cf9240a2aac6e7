"""Several problems on one GPU: workers of the interpreter share a device, and a kernel writes down its every use."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from itertools import combinations
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.store.records import State
from tuner.store.store import Store
from tuner.sweep import loop, messages, sweep_processes, worker
from tuner.sweep.compile_pool import CompilePool, Urgency
from tuner.sweep.observer import Observer
from tuner.sweep.plan import Plan
from tuner.sweep.run import sweep
from tuner.sweep.strategies import EXHAUSTIVE


class Use(NamedTuple):
    """One use of the device."""

    problem: str
    what: str
    pid: str
    how: str
    begun: float
    ended: float


def overlap(one, other):
    return one.begun < other.ended and other.begun < one.ended


class Shared:
    """Tunes problems on a device with compilers, which several workers share."""

    def __init__(self, make, store, folder):
        self.make, self.store, self.folder = make, store, folder

    def problem(self, name, behaviours="good", configs=2, sleep_ms=10, **extras):
        extras |= {"name": name, "shared": str(self.folder)}
        return self.make(behaviours=behaviours, configs=configs, sleep_ms=sleep_ms, **extras)

    def sweep(self, *problems, plan=None, **options):
        report = sweep(self.store, problems, [None], plan or Plan(EXHAUSTIVE), **options)
        return {dict(ended.problem.extras)["name"]: ended for ended in report.problems}

    @property
    def uses(self):
        """Every use of the device, in the order they began; nobody else used it while one was alone there."""
        lines = [line.split() for line in (self.folder / "log").read_text().splitlines()]
        uses = [Use(*words, float(begun), float(ended)) for *words, begun, ended in lines]
        uses.sort(key=lambda use: use.begun)
        for one, other in combinations(uses, 2):
            assert one.pid == other.pid or not overlap(one, other) or one.how == other.how == "shared"
        return uses

    def during(self, name, *what, how=("alone", "shared")):
        """The problems at work between the first and the last such use by a problem."""
        uses = self.uses
        theirs = [use for use in uses if use.problem == name and use.what in what and use.how in how]
        begun, ended = theirs[0].begun, theirs[-1].ended
        return {use.problem for use in uses if use.begun < ended and begun < use.ended}

    def during_rounds(self, name):
        """The problems at work while a problem's finals are played."""
        return self.during(name, "vendor", how="alone")

    def pids(self, name):
        return {use.pid for use in self.uses if use.problem == name}


@pytest.fixture
def workers():
    return 2


@pytest.fixture
def shared(faulty, tmp_path, monkeypatch, workers):
    def start_pool(self, _device):
        return self._stack.enter_context(CompilePool(KNOWN["sm_90"], workers=workers))

    monkeypatch.setattr(sweep_processes.SweepProcesses, "_start_pool", start_pool)
    monkeypatch.setattr(sweep_processes, "WORKERS_OF_A_GPU", workers)
    folder = tmp_path / "shared"
    folder.mkdir()
    with Store.open(str(tmp_path / "tuner.db")) as store:
        yield Shared(faulty, store, folder)


def test_one_problem_measures_while_the_other_waits_for_a_binary_and_none_disturbs_the_others_figures(
    shared, monkeypatch
):
    asked, request, hasten = defaultdict(dict), CompilePool.request, CompilePool.hasten

    def note(self, key, urgency):
        _, _, problem, config = self._requested[key]
        asked[dict(problem.extras)["name"], config["behaviour"]][urgency] = True

    def note_request(self, spec, problem, config, urgency=Urgency.NOW):
        key = request(self, spec, problem, config, urgency)
        note(self, key, urgency)
        return key

    def note_hasten(self, key, urgency):
        note(self, key, urgency)
        hasten(self, key, urgency)

    monkeypatch.setattr(CompilePool, "request", note_request)
    monkeypatch.setattr(CompilePool, "hasten", note_hasten)
    ended = shared.sweep(
        shared.problem("a", "good,late", until="c launch", configs=1),
        shared.problem("b", "good,slow"),
        shared.problem("c", "good,late", until="a vendor", configs=4, sleep_ms=100),
    )
    assert all(each.winner for each in ended.values())
    assert shared.during("a", "launch") == {"a", "b", "c"}
    assert len(shared.pids("a") | shared.pids("b")) == 2
    assert shared.pids("c") == shared.pids("b")
    for name in "abc":
        assert shared.during_rounds(name) == {name}
    assert ended["a"].phases_s.keys() == {"set up", "search", "compile", "finals"}
    assert list(asked["b", "slow"]) == [Urgency.NEXT, Urgency.BESIDE]
    assert list(asked["c", "late"]) == [Urgency.NEXT, Urgency.BESIDE, Urgency.NOW], "it is the first once a has ended"


def test_another_problem_is_at_work_while_what_has_ended_is_stored(shared, monkeypatch):
    busy, conclude = [], loop.Loop._conclude

    def note(self, supervisor, *, interrupted):
        busy.append([other.busy for other in self._supervisors if other is not supervisor])
        conclude(self, supervisor, interrupted=interrupted)

    monkeypatch.setattr(loop.Loop, "_conclude", note)
    shared.sweep(
        shared.problem("a", "good,late", until="b launch", configs=1), shared.problem("b", configs=4, sleep_ms=100)
    )
    assert busy == [[True], [False]]


@pytest.mark.parametrize("workers", [3])
def test_a_third_problem_measures_while_two_wait(shared):
    ended = shared.sweep(
        shared.problem("a", "good,late", until="c vendor", configs=1),
        shared.problem("b", "good,late", until="c vendor", configs=1),
        shared.problem("c"),
        shared.problem("d"),
    )
    assert all(each.winner for each in ended.values())
    assert len(shared.pids("a") | shared.pids("b") | shared.pids("c")) == 3
    assert shared.during("a", "launch") >= {"a", "b", "c"}
    for name in "abcd":
        assert shared.during_rounds(name) == {name}


def test_one_problem_is_prepared_while_another_one_is(shared):
    shared.sweep(
        shared.problem("a", "good,late", until="b launch", configs=4, sleep_ms=100),
        shared.problem("b", configs=8, sleep_ms=100),
    )
    shared_uses = [use for use in shared.uses if use.how == "shared"]
    assert any(one.pid != other.pid and overlap(one, other) for one, other in combinations(shared_uses, 2))


def test_who_waits_for_a_hung_worker_is_not_taken_for_hung_itself(shared, monkeypatch):
    monkeypatch.setattr(worker, "TRIAL_LIMIT_S", 2.5)
    # a's trials take longest, so its worker has 4.8 s once it is stuck; b's has 2.5 s, and waits until a's is killed.
    ended = shared.sweep(
        shared.problem("a", "good,stuck", until="b launch", configs=1, sleep_ms=1200),
        shared.problem("b", "good,late", until="a stuck", configs=1),
    )
    assert ended["a"].states == {State.COMPLETE: 1, State.TIMEOUT: 1}
    assert ended["b"].states == {State.COMPLETE: 2}
    assert len(shared.pids("a")) == 2
    assert len(shared.pids("b")) == 1
    stuck = next(use.begun for use in shared.uses if use.what == "stuck")
    waited = min(use.begun for use in shared.uses if use.problem == "b" and use.how == "alone" and use.begun > stuck)
    assert waited > stuck + worker.TRIAL_LIMIT_S


@pytest.mark.parametrize("workers", [3])
@pytest.mark.parametrize("greedy", [pytest.param("inputs", marks=pytest.mark.long), "launch"])
def test_of_three_one_that_runs_out_of_memory_waits_until_it_is_alone(shared, greedy):
    ended = shared.sweep(
        shared.problem("a", "good,late", until=f"c {greedy}", configs=1),
        shared.problem("b", "good,late", until=f"c {greedy}", configs=1),
        shared.problem("c", greedy=greedy),
    )
    assert all(each.winner for each in ended.values())
    assert ended["c"].states == {State.COMPLETE: 2}


@pytest.mark.parametrize("dying", [pytest.param("ab", marks=pytest.mark.long), "ba"])
def test_a_worker_that_dies_harms_its_own_problem_alone(shared, dying):
    deadly, healthy = dying
    behaviours = {"a": "good,late", "b": "good,slow"}
    behaviours[deadly] += ",deadly"
    ended = shared.sweep(
        shared.problem("a", behaviours["a"], until="b vendor", configs=1), shared.problem("b", behaviours["b"])
    )
    assert all(each.winner for each in ended.values())
    assert ended[deadly].states[State.CRASHED] > 0
    assert ended[healthy].states.keys() == {State.COMPLETE}
    assert len(shared.pids(deadly)) > len(shared.pids(healthy)) == 1


def test_a_worker_beside_another_opens_the_device_when_it_is_told(faulty):
    beside = worker.Worker(None, opens=False)
    assert beside.wait() == messages.Imported()
    assert not beside.connection.poll(0.5)
    beside.open()
    assert beside.hello().device == INTERPRETER
    beside.kill()


class Order(Observer):
    """Notes which problems begin and end."""

    def __init__(self):
        self.told = []

    def problem_started(self, job, gpu):
        self.told.append(("started", dict(job.problem.extras)["name"]))

    def problem_ended(self, report):
        self.told.append(("ended", dict(report.problem.extras)["name"]))


def test_no_other_problem_launches_beside_a_large_one(shared):
    order = Order()
    ended = shared.sweep(
        shared.problem("a", "good,late", until="large inputs", configs=1),
        shared.problem("large", "good,late", until="b launch", limit_s=2, large=1),
        shared.problem("b"),
        observer=order,
    )
    assert all(each.winner for each in ended.values())
    assert shared.during("large", "launch", "vendor") == {"large"}
    assert order.told.index(("ended", "large")) < order.told.index(("started", "b"))
    assert max(use.ended for use in shared.uses if use.problem == "a") < min(
        use.begun for use in shared.uses if use.problem == "large" and use.what == "launch"
    )


@pytest.mark.parametrize("greedy", ["inputs", "launch", pytest.param("finals", marks=pytest.mark.long)])
def test_what_runs_out_of_memory_beside_another_problem_is_done_again_alone(shared, greedy):
    ended = shared.sweep(
        shared.problem("a", "good,late", until=f"b {greedy}", configs=1), shared.problem("b", greedy=greedy)
    )
    assert all(each.winner for each in ended.values())
    assert ended["b"].states == {State.COMPLETE: 2}
    assert ended["b"].measured == 2


@pytest.mark.long
def test_a_gpu_that_only_one_worker_can_open_is_tuned_by_that_one(shared, monkeypatch):
    from faulty_kernels import serve_alone

    monkeypatch.setattr(worker, "serve", serve_alone)
    ended = shared.sweep(shared.problem("a", "good,deadly", configs=1, sleep_ms=300), shared.problem("b"))
    assert all(each.winner for each in ended.values())


class AtTrialOfBoth(Observer):
    """Calls `action` once both problems have a trial."""

    def __init__(self, action):
        self.action, self.seen = action, set()

    def trial_ended(self, job, config, outcome):
        if job.problem not in self.seen:
            self.seen.add(job.problem)
            if len(self.seen) == 2:
                self.action()


def test_an_interrupt_ends_both_problems_and_keeps_their_trials(shared):
    stop = threading.Event()
    ended = shared.sweep(
        shared.problem("a", "good,late", until="b vendor", configs=1),
        shared.problem("b", configs=8, sleep_ms=50),
        observer=AtTrialOfBoth(stop.set),
        stop=stop,
    )
    assert [(each.winner, each.reason) for each in ended.values()] == [(None, "interrupted")] * 2
    assert 0 < ended["b"].measured < 8
    assert len(shared.store.trials()) == sum(each.measured for each in ended.values())


def test_a_spent_time_budget_decides_both_problems_on_what_there_is(shared, monkeypatch):
    clock = SimpleNamespace(ahead_s=0.0, sleep=time.sleep)
    clock.monotonic = lambda: time.monotonic() + clock.ahead_s
    monkeypatch.setattr(loop, "time", clock)
    ended = shared.sweep(
        shared.problem("a", "good,late", until="b vendor", configs=1),
        shared.problem("b", configs=8, sleep_ms=50),
        plan=Plan(EXHAUSTIVE, time_budget_s=600.0),
        observer=AtTrialOfBoth(lambda: setattr(clock, "ahead_s", 600.0)),
    )
    assert all(each.winner and each.stopped == "the time budget is spent" for each in ended.values())
    assert ended["b"].measured < 8
