"""Sweeps over a third party's kernel that fails in every way, on the interpreter's device, with real processes."""

import dataclasses
import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner.errors import DeviceError, StoreError, SweepError
from tuner.hardware.device import INTERPRETER, KNOWN, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.kernel.space import Rule
from tuner.problem import Problem
from tuner.problem.family import ladders
from tuner.store.records import State
from tuner.store.store import Store
from tuner.sweep import child, job_prefetch, loop, supervisor, sweep_processes, worker
from tuner.sweep.agenda import Agenda
from tuner.sweep.compile_pool import CompilePool
from tuner.sweep.history import History
from tuner.sweep.job import Job
from tuner.sweep.ladder import PROBE, TuningStep
from tuner.sweep.measure import VENDOR
from tuner.sweep.observer import Observer
from tuner.sweep.paired import PairedRunner
from tuner.sweep.plan import Plan
from tuner.sweep.race import RACE
from tuner.sweep.run import forecast, sweep
from tuner.sweep.search import Strategy
from tuner.sweep.strategies import EXHAUSTIVE, _listed
from tuner.sweep.timer import GraphTimer, HostTimer


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "tuner.db")) as store:
        yield store


class Interrupting(Observer):
    """Calls `action` after so many trials."""

    def __init__(self, after, action):
        self.left, self.action, self.pids = after, action, []

    def trial_ended(self, job, config, outcome):
        self.left -= 1
        if self.left == 0:
            self.action()


def test_every_kind_of_failure_becomes_its_state_and_the_sweep_goes_on(faulty, store, monkeypatch):
    monkeypatch.setattr(worker, "TRIAL_LIMIT_S", 2.0)
    behaviours = "good,wrong,unwritten,stray,raise,segfault,stop,hang,out_of_resources"
    problem = faulty(configs=1, behaviours=behaviours)
    report = sweep(store, [problem], [None], Plan(EXHAUSTIVE))
    (ended,) = report.problems
    assert ended.winner is not None
    assert ended.winner.config["behaviour"] == "good"
    found = {trial.config["behaviour"]: trial for trial in store.trials()}
    states = {name: trial.outcome.state for name, trial in found.items()}
    assert states == {
        "good": State.COMPLETE,
        "wrong": State.WRONG_RESULT,
        "unwritten": State.WRONG_RESULT,
        "stray": State.WRONG_RESULT,
        "raise": State.RUNTIME_ERROR,
        "segfault": State.CRASHED,
        "stop": State.TIMEOUT,
        "hang": State.TIMEOUT,
        "out_of_resources": State.OUT_OF_RESOURCES,
    }
    messages = {name: trial.outcome.message for name, trial in found.items()}
    assert messages["stray"] == "wrote outside its output"
    assert messages["segfault"] == "worker died with signal SIGSEGV"
    assert messages["hang"] == "no sign of life for 2 s, killed"
    assert messages["raise"] == "RuntimeError: no such instruction"
    assert "float64" in messages["wrong"]


@pytest.mark.long
def test_configs_that_hang_are_told_and_only_the_first_trial_is_waited_for_long(faulty, store, monkeypatch, caplog):
    monkeypatch.setattr(worker, "TRIAL_LIMIT_S", 1.0)
    monkeypatch.setattr(child, "NOTICE_S", 0.5)
    sweep(store, [faulty(configs=2, behaviours="hang", default="hang")], [None], Plan(EXHAUSTIVE))
    trials = store.trials()
    assert {trial.outcome.message for trial in trials} == {
        "no sign of life for 4 s, killed",
        "no sign of life for 1 s, killed",
    }
    assert sorted(
        record.getMessage().partition(":")[0] for record in caplog.records if "during faulty" in record.message
    ) == sorted(f"the worker is silent during {trial.config}" for trial in trials)


def test_a_kernels_module_that_hangs_in_the_worker_is_told_and_ends_the_sweep(store, monkeypatch, tmp_path, caplog):
    (tmp_path / "hangs_here.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "references", lambda: ("hangs_here:k",))
    monkeypatch.setattr(child, "IMPORT_LIMIT_S", 1.0)
    monkeypatch.setattr(child, "NOTICE_S", 0.3)
    with pytest.raises(SweepError, match=r"no sign of life for 1 s, killed \(during the import of hangs_here:k\)"):
        sweep(store, [Problem(16, 16, 16)], [None], Plan(EXHAUSTIVE))
    assert "the worker is silent during the import of hangs_here:k: it is killed in" in caplog.text


def test_a_second_sweep_measures_nothing_and_keeps_the_winner(faulty, store):
    problem = faulty(configs=6)
    first = sweep(store, [problem], [None], Plan(EXHAUSTIVE)).problems[0]
    second = sweep(store, [problem], [None], Plan(EXHAUSTIVE)).problems[0]
    assert (first.measured, first.resumed) == (6, 0)
    assert (second.measured, second.resumed) == (0, 6)
    assert second.reason == "already tuned"
    assert second.winner == first.winner
    assert len(store.trials()) == 6


def test_a_second_race_lists_no_search_space_of_what_is_tuned(faulty, store, monkeypatch):
    tuned, untuned = faulty(configs=2), faulty(configs=2, name="another")
    first = sweep(store, [tuned], [None], Plan(RACE)).problems[0]
    made, make = [], job_prefetch.make_job
    monkeypatch.setattr(job_prefetch, "make_job", lambda step, *rest: made.append(step.problem) or make(step, *rest))
    ended = {each.problem: each for each in sweep(store, [tuned, untuned], [None], Plan(RACE)).problems}
    assert made == [untuned]
    assert (ended[tuned].winner, ended[tuned].reason) == (first.winner, "already tuned")
    assert ended[untuned].measured == 2


@pytest.mark.long
def test_a_winner_that_its_kernel_no_longer_lists_is_decided_anew(faulty, store, monkeypatch):
    problem = faulty(configs=1, behaviours="slow,good", default="slow")
    gone = sweep(store, [problem], [None], Plan(EXHAUSTIVE)).problems[0].winner.config
    spec = registry.find("faulty", "faulty")
    rule = Rule(
        "configs", "", lambda config, _problem, _device: "no longer listed" if config == gone else None, fatal=True
    )
    edited = dataclasses.replace(
        spec, space=lambda problem, device: dataclasses.replace(spec.space(problem, device), rules=(rule,))
    )
    monkeypatch.setattr("faulty_kernels.SPEC", edited)
    registry.forget()
    history = History(store, INTERPRETER, store.winners()[0].environment)
    assert history.undecided([problem]) == [problem]
    assert sweep(store, [problem], [None], Plan(EXHAUSTIVE)).problems[0].winner.config["behaviour"] == "slow"
    assert sweep(store, [problem], [None], Plan(EXHAUSTIVE)).problems[0].reason == "already tuned"


def test_a_gpu_that_is_asked_for_under_the_interpreter_is_one_clear_error(faulty, store, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(DeviceError, match=r"GPU 0 .* TRITON_INTERPRET is set: .*unset it, or give \[None\]"):
        sweep(store, [faulty(configs=1)], [0], Plan(EXHAUSTIVE))


def test_problems_from_an_iterator_are_tuned_though_the_device_is_not_the_expected_one(faulty, store, monkeypatch):
    monkeypatch.setattr("tuner.sweep.run._expected", lambda *_: KNOWN["sm_90"])
    report = sweep(store, iter([faulty(configs=1)]), [None], Plan(EXHAUSTIVE))
    assert [ended.problem for ended in report.problems] == [faulty(configs=1)]


@pytest.mark.long
def test_fresh_measures_again_and_keeps_the_old_trials(faulty, store):
    problem = faulty(configs=3)
    sweep(store, [problem], [None], Plan(EXHAUSTIVE))
    assert sweep(store, [problem], [None], Plan(EXHAUSTIVE, fresh=True)).problems[0].measured == 3
    assert len(store.trials()) == 6
    assert len(store.winners()) == 1


@pytest.mark.parametrize(
    ("plan", "behaviours"),
    [
        pytest.param(Plan(EXHAUSTIVE, fresh=True), "good", id="fresh"),
        # A crash is tried once more, though not by the same run.
        pytest.param(Plan(EXHAUSTIVE), "good,segfault", id="crash", marks=pytest.mark.long),
    ],
)
def test_a_run_measures_a_problem_once_though_two_ladders_come_to_it_one_after_the_other(
    faulty, store, plan, behaviours
):
    problem = faulty(configs=1, behaviours=behaviours)
    (short,), (long,) = (ladders(range(1, last + 1), problem.with_m) for last in (2, 3))
    report = sweep(store, [short, long], [None], plan)
    assert report.undecided_count == 0
    assert len(report.families) == 2
    tried = [(trial.problem, trial.config) for trial in store.trials()]
    assert len(tried) == len(set(tried)) == 3 * len(behaviours.split(","))


@pytest.mark.parametrize("before", ["nothing", "slow", "slow and good, but --fresh"])
def test_a_tuned_problem_is_decided_anew_with_a_config_that_its_finals_are_to_have(faulty, store, monkeypatch, before):
    """As a ladder asks for where a config of more rows is faster than what won."""
    problem = faulty(configs=1, behaviours="slow,good", default="slow")
    configs = registry.find("faulty", "faulty").space(problem, INTERPRETER).configs()
    slow, good = sorted(configs, key=lambda config: config["behaviour"], reverse=True)
    ended, asked = Agenda.ended, []

    def ask_again(agenda, *args):
        complete = ended(agenda, *args)
        if not asked:
            asked.append(TuningStep(problem, PROBE, (slow, good), in_finals=True))
            agenda._list(asked)
        return complete

    only_slow = Plan(Strategy("first", lambda task: _listed(task, [task.default])))
    fresh = "--fresh" in before
    if before != "nothing":
        sweep(store, [problem], [None], Plan(EXHAUSTIVE) if fresh else only_slow)
    monkeypatch.setattr(Agenda, "ended", ask_again)
    (report,) = sweep(store, [problem], [None], dataclasses.replace(only_slow, fresh=fresh)).problems
    assert report.winner == store.winners()[0]
    assert report.winner.config == good
    assert report.measured == (1 if before == "slow" else 2)
    assert {trial.config for trial in store.trials()} == {slow, good}
    assert len(store.trials()) == (4 if fresh else 2)


@pytest.mark.long
def test_new_configs_are_measured_and_old_trials_kept(faulty, store):
    sweep(store, [faulty(configs=4)], [None], Plan(EXHAUSTIVE, trials=2))
    ended = sweep(store, [faulty(configs=4)], [None], Plan(EXHAUSTIVE)).problems[0]
    assert (ended.measured, ended.resumed) == (2, 2)


def test_the_fast_config_wins_and_is_compared_with_the_default_and_the_vendor(faulty, store):
    ended = sweep(store, [faulty(configs=2, behaviours="slow,good")], [None], Plan(EXHAUSTIVE)).problems[0]
    assert ended.winner.config["behaviour"] == "good"
    assert ended.winner.vs_vendor is not None
    assert ended.winner.vs_default is not None


def test_the_finals_have_as_many_rounds_as_the_strategy_says(faulty, store, monkeypatch):
    played, verdict = [], Job.verdict

    def note(job, times):
        played.append(len(times[VENDOR]))
        return verdict(job, times)

    monkeypatch.setattr(Job, "verdict", note)
    problem = faulty(configs=2)
    for rounds in (2, None, 99):
        sweep(store, [problem], [None], Plan(dataclasses.replace(EXHAUSTIVE, rounds=rounds), fresh=True))
    assert played == [2, HostTimer.final_rounds, HostTimer.final_rounds]
    assert RACE.rounds < GraphTimer.final_rounds


def test_an_interrupt_keeps_every_finished_trial_and_the_next_sweep_goes_on(faulty, store):
    stop = threading.Event()
    problem = faulty(configs=8, sleep_ms=20)
    first = sweep(
        store, [problem, faulty(configs=2)], [None], Plan(EXHAUSTIVE), observer=Interrupting(3, stop.set), stop=stop
    )
    assert first.interrupted
    assert [str(p) for p in first.untried] == [str(faulty(configs=2))]
    kept = len(store.trials())
    assert 3 <= kept < 8
    assert store.runs()[-1].status == "INTERRUPTED"
    second = sweep(store, [problem], [None], Plan(EXHAUSTIVE)).problems[0]
    assert second.resumed == kept
    assert second.measured == 8 - kept


def test_a_second_ctrl_c_right_after_a_commit_is_an_interrupt_and_stores_nothing_twice(faulty, store, monkeypatch):
    record, batches = store.record, []

    def interrupted(run, trials, **options):
        record(run, trials, **options)
        batches.append(len(trials))
        if len(batches) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(store, "record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(store, [faulty(configs=4)], [None], Plan(EXHAUSTIVE))
    tried = [(trial.problem, trial.config) for trial in store.trials()]
    assert len(tried) == len(set(tried)) >= batches[0]
    assert [run.status for run in store.runs()] == ["INTERRUPTED"]


@pytest.mark.long
def test_what_an_interrupted_sweep_did_not_begin_counts_as_untuned_only_without_an_earlier_winner(faulty, store):
    tuned, new, longer = faulty(configs=2), faulty(configs=3), faulty(configs=8, sleep_ms=20)
    sweep(store, [tuned], [None], Plan(EXHAUSTIVE))
    plan = Plan(dataclasses.replace(EXHAUSTIVE, revisits=True))
    for last, untuned in ((new, [new]), (tuned, [])):
        stop = threading.Event()
        observer = Interrupting(2, stop.set)
        report = sweep(store, [longer, tuned, last], [None], plan, observer=observer, stop=stop)
        assert report.untried == list(dict.fromkeys([tuned, last]))
        assert report.untuned == untuned
        assert report.undecided_count == 1 + len(untuned)


@pytest.mark.parametrize("again", ["fresh", "since"])
def test_a_fresh_sweep_that_was_stopped_goes_on_where_it_stopped(faulty, store, again):
    problems = [faulty(configs=8, sleep_ms=20).with_m(m) for m in (16, 17, 18)]
    sweep(store, problems, [None], Plan(EXHAUSTIVE))
    stop = threading.Event()
    stopped = sweep(
        store, problems, [None], Plan(EXHAUSTIVE, fresh=True), observer=Interrupting(11, stop.set), stop=stop
    )
    assert stopped.untuned == problems[2:]
    assert stopped.undecided_count == 2
    measured = len(store.trials()) - 24
    assert 11 <= measured < 16
    plan = Plan(EXHAUSTIVE, fresh=True, fresh_since=stopped.fresh_since if again == "since" else None)
    report = sweep(store, problems, [None], plan)
    assert report.undecided_count == 0
    newest, *_ = store.runs()
    assert newest.uuid.startswith(report.fresh_since) is (again == "fresh")
    assert (report.fresh_since == stopped.fresh_since) is (again == "since")
    assert sum(each.measured for each in report.problems) == (24 - measured if again == "since" else 24)
    assert [each.reason for each in report.problems] == ["already tuned" if again == "since" else "", "", ""]


def test_a_ladder_that_a_counted_run_finished_is_not_tuned_again_for_winners_that_do_not_count(faulty, store):
    """Winners of before lie at other Ms than the ladder's own, as after a change of its points."""
    problem = faulty(configs=2)
    (ladder,) = ladders(range(1, 33), problem.with_m)
    others = [m for m in range(1, 33) if problem.with_m(m) not in ladder.rungs]
    sweep(store, [problem.with_m(m) for m in others], [None], Plan(EXHAUSTIVE))
    fresh = sweep(store, [ladder], [None], Plan(EXHAUSTIVE, fresh=True))
    assert fresh.families
    trials = len(store.trials())
    again = sweep(store, [ladder], [None], Plan(EXHAUSTIVE, fresh=True, fresh_since=fresh.fresh_since))
    assert len(store.trials()) == trials
    assert {each.reason for each in again.problems} <= {"already tuned"}
    assert not again.families


@pytest.mark.parametrize(("name", "what"), [("7%", "there is no run '7%'"), ("", "there is no run ''")])
def test_a_sweep_goes_on_from_no_run_that_is_not_there(faulty, store, name, what):
    for _ in range(2):
        store.begin_run(INTERPRETER, Environment("3.7.1", "2.13.0", "", "", "3.11"), argv=[], host="h")
    with pytest.raises(StoreError, match=f"{what}: `tuner show runs` lists all"):
        sweep(store, [faulty()], [None], Plan(EXHAUSTIVE, fresh=True, fresh_since=name))


@pytest.fixture
def clock(monkeypatch):
    """The sweep's clock, which a test can put forward; its workers keep their own."""
    clock = SimpleNamespace(ahead_s=0.0, sleep=time.sleep)
    clock.monotonic = lambda: time.monotonic() + clock.ahead_s
    monkeypatch.setattr(loop, "time", clock)
    return clock


def test_a_spent_time_budget_decides_on_what_there_is(faulty, store, clock):
    spend = Interrupting(4, lambda: setattr(clock, "ahead_s", 600.0))
    plan = Plan(EXHAUSTIVE, time_budget_s=600.0)
    report = sweep(store, [faulty(configs=20), faulty(configs=3)], [None], plan, observer=spend)
    (ended,) = report.problems
    assert ended.winner is not None
    assert ended.measured == 4
    assert ended.stopped == "the time budget is spent"
    assert report.untried == [faulty(configs=3)]
    assert report.is_spent


def test_the_time_that_finals_take_is_kept_back(faulty, store, clock):
    spend = Interrupting(4, lambda: setattr(clock, "ahead_s", 600.0 - loop._FINALS_S))
    report = sweep(store, [faulty(configs=20)], [None], Plan(EXHAUSTIVE, time_budget_s=600.0), observer=spend)
    assert report.problems[0].measured == 4


def test_a_problem_begun_too_late_for_a_trial_is_left_to_the_next_sweep(faulty, store, clock):
    class Slow(Observer):
        def problem_started(self, job, gpu):
            clock.ahead_s = 600.0

    problems = [faulty(configs=3), faulty(configs=4)]
    report = sweep(store, problems, [None], Plan(EXHAUSTIVE, time_budget_s=600.0), observer=Slow())
    assert [(ended.winner, ended.reason) for ended in report.problems] == [(None, "the time budget is spent")]
    assert report.untried == problems[1:]
    assert report.is_spent
    assert store.trials() == []


def test_a_sweep_says_that_it_lives_and_survives_a_database_that_is_locked_for_it(faulty, store, monkeypatch):
    monkeypatch.setattr(loop, "HEARTBEAT_S", 0.0)
    beat, failures = store.heartbeat, iter([StoreError("another process holds its lock")])

    def beat_later(run):
        for failure in failures:
            raise failure
        beat(run)

    monkeypatch.setattr(store, "heartbeat", beat_later)
    found = []

    class Watching(Observer):
        def trial_ended(self, job, config, outcome):
            with closing(sqlite3.connect(store.location)) as plain, plain:
                found.extend(plain.execute("SELECT heartbeat_at, status FROM run"))
                plain.execute("UPDATE run SET heartbeat_at = 'long ago', status = 'INTERRUPTED'")

    sweep(store, [faulty(configs=4, sleep_ms=20)], [None], Plan(EXHAUSTIVE), observer=Watching())
    assert len(found) == 4
    assert all(status == "RUNNING" and "T" in when for when, status in found)
    assert store.runs()[0].status == "DONE"


def test_a_killed_worker_is_replaced_and_the_sweep_ends(faulty, store):
    problem = faulty(configs=12, sleep_ms=30)

    def kill_worker():
        for pid in children_of(os.getpid(), "spawn_main"):
            os.kill(pid, signal.SIGKILL)

    ended = sweep(store, [problem], [None], Plan(EXHAUSTIVE), observer=Interrupting(4, kill_worker)).problems[0]
    assert ended.winner is not None
    assert ended.states[State.COMPLETE] + ended.states[State.CRASHED] == 12
    assert ended.states[State.CRASHED] <= 1


@pytest.mark.long
def test_every_trial_names_the_card_of_its_worker_also_where_that_died(faulty, store, on_a_card):
    on_a_card("GPU-1")
    sweep(store, [faulty(configs=2, behaviours="good,segfault,wrong")], [None], Plan(EXHAUSTIVE))
    found = {(row.outcome.state, row.outcome.gpu_uuid) for row in store.trials()}
    assert found == {(state, "GPU-1") for state in (State.COMPLETE, State.CRASHED, State.WRONG_RESULT)}


def test_a_trial_of_the_interpreter_names_no_card(faulty, store):
    sweep(store, [faulty(configs=1)], [None], Plan(EXHAUSTIVE))
    assert {row.outcome.gpu_uuid for row in store.trials()} == {None}


@pytest.mark.long
def test_a_crash_is_tried_once_more_by_the_next_sweep_and_then_known(faulty, store):
    problem = faulty(configs=1, behaviours="good,segfault")
    measured = [sweep(store, [problem], [None], Plan(EXHAUSTIVE)).problems[0].measured for _ in range(3)]
    assert measured == [2, 1, 0]


@pytest.mark.long
def test_a_default_that_kills_its_worker_costs_neither_its_problem_nor_the_next_one(faulty, store):
    deadly = faulty(configs=1, behaviours="good,segfault", default="segfault")
    report = sweep(store, [deadly, faulty(configs=2)], [None], Plan(EXHAUSTIVE))
    first, second = report.problems
    assert first.winner.config["behaviour"] == "good"
    assert first.winner.vs_default is None
    assert second.winner is not None


def test_a_problem_whose_every_config_fails_is_reported_and_the_next_one_is_tuned(faulty, store):
    failing = faulty(configs=2, behaviours="raise", default="raise")
    first, second = sweep(store, [failing, faulty(configs=2)], [None], Plan(EXHAUSTIVE)).problems
    assert first.winner is None
    reason = "no config worked: 2 of 2 RUNTIME_ERROR, for instance RuntimeError: no such instruction"
    assert first.reason == reason
    assert second.winner is not None
    assert second.states[State.COMPLETE] == 2
    (again,) = sweep(store, [failing], [None], Plan(EXHAUSTIVE)).problems
    assert again.reason == f"{reason} (all tried by earlier runs: --fresh tries them again)"


@pytest.mark.long
def test_trials_that_came_after_the_decision_are_heard(faulty, store):
    problem = faulty(configs=6, behaviours="good,slow", default="slow", sleep_ms=20)
    first = sweep(store, [problem], [None], Plan(EXHAUSTIVE, trials=1)).problems[0]
    assert first.winner.config["behaviour"] == "slow"
    time.sleep(1.1)  # decisions are dated to the second
    stop = threading.Event()
    interrupted = sweep(store, [problem], [None], Plan(EXHAUSTIVE), observer=Interrupting(11, stop.set), stop=stop)
    assert interrupted.interrupted
    last = sweep(store, [problem], [None], Plan(EXHAUSTIVE)).problems[0]
    assert last.measured == 0
    assert last.winner.config["behaviour"] == "good"


@pytest.mark.long
def test_a_stopped_worker_is_replaced_and_the_sweep_ends(faulty, store, monkeypatch):
    monkeypatch.setattr(worker, "TRIAL_LIMIT_S", 2.0)
    problem = faulty(configs=12, sleep_ms=30)

    def stop_worker():
        for pid in children_of(os.getpid(), "spawn_main"):
            os.kill(pid, signal.SIGSTOP)

    ended = sweep(store, [problem], [None], Plan(EXHAUSTIVE), observer=Interrupting(4, stop_worker)).problems[0]
    assert ended.winner is not None
    assert ended.states[State.COMPLETE] + ended.states[State.TIMEOUT] == 12


@pytest.mark.long
def test_a_time_does_not_hold_the_pause_of_a_worker_that_was_stopped_and_continued(faulty, store):
    from faulty_kernels import PAUSE_S

    paused = faulty(configs=1, behaviours="pause", default="pause")
    (ended,) = sweep(store, [paused], [None], Plan(EXHAUSTIVE)).problems
    (trial,) = store.trials()
    assert trial.outcome.state is State.COMPLETE
    assert trial.outcome.median_us < PAUSE_S * 1e6 / 2
    assert ended.phases_s["search"] > PAUSE_S  # it was paused in both phases
    assert ended.phases_s["finals"] > PAUSE_S


def test_a_worker_that_cannot_start_is_one_clear_error(faulty, store, monkeypatch):
    from faulty_kernels import die_at_once

    monkeypatch.setattr(worker, "serve", die_at_once)
    with pytest.raises(SweepError, match=r"did not start: worker died with exit code 3: libcuda\.so\.1: cannot open"):
        sweep(store, [Problem(16, 16, 16)], [None], Plan(EXHAUSTIVE))


def test_a_config_that_loses_the_context_in_paired_rounds_is_named(faulty, monkeypatch):
    from faulty_kernels import lose_the_context

    monkeypatch.setattr(worker, "serve", lose_the_context)
    with PairedRunner(None) as runner:
        said = runner.play(faulty(), [Config("faulty", behaviour="good", index=0)])
    assert said == "faulty(behaviour=good, index=0): RuntimeError: an illegal memory access"


@pytest.mark.long
def test_a_machine_where_every_worker_dies_ends_the_sweep_and_keeps_the_trials(faulty, store, monkeypatch):
    monkeypatch.setattr(supervisor, "DEATHS_IN_A_ROW", 2)
    problems = [faulty(configs=count, behaviours="segfault", default="segfault") for count in (5, 6, 7)]
    with pytest.raises(SweepError, match=r"2 workers died in a row: worker died with signal SIGSEGV.*tuner doctor"):
        sweep(store, problems, [None], Plan(EXHAUSTIVE))
    assert store.runs()[-1].status == "FAILED"
    assert [trial.outcome.state for trial in store.trials()] == [State.CRASHED] * 4


def test_a_problem_no_kernel_serves_is_reported_and_the_others_are_tuned(faulty, store):
    unknown = Problem(16, 16, 16, op="unheard_of")
    report = sweep(store, [unknown, faulty(configs=1)], [None], Plan(EXHAUSTIVE))
    assert report.problems[0].winner is None
    assert "no kernel serves" in report.problems[0].reason
    assert report.problems[1].winner is not None


CARELESS = {
    "supports raises": "supports of the kernel careless/careless failed: TypeError: no such",
    "supports gives True": "supports of the kernel careless/careless returned True: expected None, or a sentence "
    "that says why it cannot serve the problem",
    "space raises": "space of the kernel careless/careless failed: TypeError: no such",
    "space gives {}": "space of the kernel careless/careless returned {}: expected a SearchSpace that has its name",
    "space gives another's": "space of the kernel careless/careless returned one of the kernel 'another': expected",
    "axis 0": "space of the kernel careless/careless gives index as 0: expected its values, (0,)",
    "axis ()": "space of the kernel careless/careless gives index no value: expected at least one",
    "signature": "the rule 'memory' of the kernel careless/careless failed for careless(behaviour=good, index=0, "
    "sleep_ms=0): TypeError: ",
    "rejects raises": "the rule 'memory' of the kernel careless/careless failed for careless(",
    "rejects gives True": "the rule 'memory' of the kernel careless/careless returned True: expected None, or",
    "canonical raises": "canonical of the kernel careless/careless failed for careless(",
    "canonical gives {}": "canonical of the kernel careless/careless returned {}: expected Configs",
    "expand raises": "expand of the kernel careless/careless failed for careless(",
    "expand gives high": "expand of the kernel careless/careless returned 'h': expected Configs",
    "default_config raises": "default_config of the kernel careless/careless failed: TypeError: no such",
    "default_config gives {}": "default_config of the kernel careless/careless returned {}: expected a Config that has",
    "default_config gives another": "default_config of the kernel careless/careless returned one of the kernel 'ano",
    "precedence raises": "precedence of the kernel careless/careless failed: TypeError: no such",
    "precedence gives high": "precedence of the kernel careless/careless returned 'high': expected an integer",
    "unmeasurable raises": "unmeasurable of the kernel careless/careless failed: TypeError: no such",
    "unmeasurable gives True": "unmeasurable of the kernel careless/careless returned True: expected None",
}


def test_a_kernel_whose_own_functions_fail_leaves_its_problems_without_a_winner_and_the_others_are_tuned(faulty, store):
    problems = [faulty("careless", configs=2, fault=fault) for fault in CARELESS]
    good = [faulty("careless", configs=2), faulty(configs=1)]
    report = sweep(store, [*problems, *good], [None], Plan(EXHAUSTIVE))
    reasons = [(ended.problem, ended.reason) for ended in report.problems[: len(problems)]]
    assert [problem for problem, _ in reasons] == problems
    for (_, reason), expected in zip(reasons, CARELESS.values(), strict=True):
        assert reason.startswith(expected), reason
    assert [ended.winner is None for ended in report.problems] == [*[True] * len(problems), False, False]
    assert store.runs()[-1].status == "DONE"


def test_a_kernel_whose_source_has_no_hash_is_not_tuned_and_the_others_are(faulty, store, monkeypatch):
    import careless_kernels

    def broken():
        raise OSError("no such file")

    monkeypatch.setattr("careless_kernels.SPEC", dataclasses.replace(careless_kernels.SPEC, source_hash=broken))
    registry.forget()
    problems = [faulty("careless", configs=1), faulty(configs=1)]
    first, second = sweep(store, problems, [None], Plan(EXHAUSTIVE)).problems
    assert first.reason.startswith("source_hash of the kernel careless/careless failed: OSError: no such file")
    assert second.winner is not None


def test_a_kernel_that_cannot_tell_its_binaries_apart_is_not_tuned_and_the_others_are(faulty, store, monkeypatch):
    def start_pool(self, device):
        return self._stack.enter_context(CompilePool(KNOWN["sm_90"], workers=2, time_limit_s=4))

    monkeypatch.setattr(sweep_processes.SweepProcesses, "_start_pool", start_pool)
    careless = faulty("careless", configs=1, fault="compile_class raises")
    first, second = sweep(store, [careless, faulty(configs=1)], [None], Plan(EXHAUSTIVE)).problems
    assert first.reason.startswith("compile_class of the kernel careless/careless failed: TypeError: no such")
    assert second.winner is not None


def test_a_forecast_writes_nothing(faulty, tmp_path):
    location = str(tmp_path / "none.db")
    (forecast_,) = forecast(location, [faulty(configs=5)], None, Plan(EXHAUSTIVE, trials=3))
    assert (forecast_.considered, forecast_.to_try, forecast_.known) == (5, 3, 0)
    assert not (tmp_path / "none.db").exists()


def test_a_forecast_counts_what_the_run_would_count(faulty, tmp_path):
    location, problem = str(tmp_path / "tuner.db"), faulty(configs=5)
    with Store.open(location) as store:
        name = sweep(store, [problem], [None], Plan(EXHAUSTIVE)) and store.runs()[0].uuid
    for plan, known in ((Plan(EXHAUSTIVE), 5), (Plan(EXHAUSTIVE, fresh=True), 0)):
        for counting, found in ((plan, known), (dataclasses.replace(plan, fresh=True, fresh_since=name), 5)):
            (told,) = forecast(location, [problem], None, counting)
            assert (told.known, told.to_try) == (found, 5 - found)


def children_of(parent, marker):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and marker in (entry / "cmdline").read_text():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_sweep_with_compilers_that_fail_records_their_states_and_goes_on(faulty, store, monkeypatch):
    def start_pool(self, device):
        return self._stack.enter_context(CompilePool(KNOWN["sm_90"], workers=2, time_limit_s=4))

    monkeypatch.setattr(sweep_processes.SweepProcesses, "_start_pool", start_pool)
    kinds = "good,raise,segfault,hang,big"
    problems = [faulty(configs=1, behaviours=kinds, compiled=True), faulty(configs=2, behaviours="good")]
    first, second = sweep(store, problems, [None], Plan(EXHAUSTIVE)).problems
    found = {t.config["behaviour"]: t.outcome for t in store.trials() if t.problem == problems[0]}
    assert {name: outcome.state for name, outcome in found.items()} == {
        "good": State.COMPLETE,
        "raise": State.COMPILE_ERROR,
        "segfault": State.COMPILE_ERROR,
        "hang": State.TIMEOUT,
        "big": State.OUT_OF_RESOURCES,
    }
    assert found["segfault"].message == "compiler died with signal SIGABRT: LLVM ERROR: unreachable executed"
    assert found["big"].message.startswith("needs ")
    assert found["good"].resources.shared_bytes == 512
    assert first.winner.config["behaviour"] == "good"
    assert second.winner is not None


def test_a_second_sweep_into_the_same_file_is_refused_while_the_first_runs(faulty, store):
    refusals = []

    def sweep_too():
        with (
            Store.open(store.location) as other,
            pytest.raises(StoreError, match="another `tuner run` or `tuner merge` is writing") as e,
        ):
            sweep(other, [faulty(configs=1)], [None], Plan(EXHAUSTIVE))
        refusals.append(e)

    ended = sweep(store, [faulty(configs=2)], [None], Plan(EXHAUSTIVE), observer=Interrupting(1, sweep_too)).problems[0]
    assert len(refusals) == 1
    assert ended.winner is not None
    assert len(store.runs()) == 1
