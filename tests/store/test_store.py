from __future__ import annotations

import dataclasses
import math
import re
import sqlite3
from contextlib import closing

import pytest

from tuner.errors import StoreError, UsageError
from tuner.hardware.device import KNOWN
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store import records
from tuner.store.records import Outcome, Resources, State, Trial, Verdict
from tuner.store.store import RunStatus, Store


def verdict(trial: Trial, *ties: Trial, median_us: float = 10.0) -> Verdict:
    return Verdict(trial.config, median_us, 12.0, 11.0, (trial.config, *(tie.config for tie in ties)))


def test_what_was_recorded_is_settled_exactly_as_it_was(store, run, device, environment, problem, kernel, make_trial):
    outcomes = {
        16: Outcome(State.COMPLETE, "", 10.0, 9.0, 11.0, 20, 1e-3, Resources(80.5, 64, 16, 49_152), 1980, 655.5, 2**40),
        32: Outcome(State.OUT_OF_RESOURCES, "out of resource: shared memory", resources=Resources(None, 255)),
        64: Outcome(State.WRONG_RESULT, error=math.inf),
        128: Outcome(State.RUNTIME_ERROR, "line one\nline two, with 'quotes' and ünïcode"),
    }
    trials = {block: dataclasses.replace(make_trial(block), outcome=outcome) for block, outcome in outcomes.items()}
    store.record(run, trials.values())
    settled = store.settled(device, environment, problem, [kernel])
    assert settled == {trials[block].config: outcomes[block] for block in outcomes}


def test_trials_of_an_earlier_run_are_settled_and_the_newest_of_a_config_counts(
    store, run, device, environment, problem, kernel, make_trial
):
    store.record(run, [make_trial(16, 10.0), make_trial(32, 20.0)])
    second = store.begin_run(device, environment, argv=[], host="node2")
    store.record(second, [make_trial(16, 9.0)])
    settled = store.settled(device, environment, problem, [kernel])
    assert {config["BLOCK_SIZE_M"]: outcome.median_us for config, outcome in settled.items()} == {16: 9.0, 32: 20.0}


def test_a_crash_or_a_hang_is_settled_when_two_trials_in_a_row_agree(
    store, device, environment, problem, kernel, make_trial
):
    def tried(state):
        run = store.begin_run(device, environment, argv=[], host="node1")
        outcome = Outcome(state, median_us=10.0 if state is State.COMPLETE else None)
        store.record(run, [dataclasses.replace(make_trial(16), outcome=outcome)])
        return [outcome.state for outcome in store.settled(device, environment, problem, [kernel]).values()]

    assert tried(State.CRASHED) == []
    assert tried(State.TIMEOUT) == [State.TIMEOUT]
    assert tried(State.COMPLETE) == [State.COMPLETE]
    assert tried(State.TIMEOUT) == []
    assert tried(State.CRASHED) == [State.CRASHED]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (State.OUT_OF_RESOURCES, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
        (State.RUNTIME_ERROR, "RuntimeError: Triton Error [CUDA]: out of memory"),
        (State.RUNTIME_ERROR, "AcceleratorError: CUDA error: out of memory"),
        (State.RUNTIME_ERROR, "AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        (State.CRASHED, "OSError: [Errno 28] No space left on device: '/root/.triton/cache/x'"),
        (State.COMPILE_ERROR, "OSError: [Errno 28] No space left on device"),
        (State.RUNTIME_ERROR, "PermissionError: [Errno 13] Permission denied: '/root/.triton/cache/x'"),
        (State.COMPILE_ERROR, "MemoryError: "),
    ],
)
def test_a_trial_that_tells_of_the_machine_settles_nothing(
    state, message, store, device, environment, problem, kernel, make_trial
):
    """A disk may be full, and another program may have the GPU's memory, for as long as two runs and longer."""

    def tried(state, message):
        run = store.begin_run(device, environment, argv=[], host="node1")
        store.record(run, [dataclasses.replace(make_trial(16), outcome=Outcome(state, message))])
        return [outcome.state for outcome in store.settled(device, environment, problem, [kernel]).values()]

    for _ in range(3):
        assert tried(state, message) == []
    assert tried(State.CRASHED, "") == []
    assert tried(State.OUT_OF_RESOURCES, "OutOfResources: shared memory") == [State.OUT_OF_RESOURCES]


def test_the_newest_trial_of_a_problem_is_dated(store, run, device, environment, problem, make_trial):
    assert store.newest_trial_at(device, environment, problem) is None
    store.record(run, [make_trial(16)])
    assert store.newest_trial_at(device, environment, problem) == store.trials()[0].measured_at
    assert store.newest_trial_at(device, environment, problem.with_shape(1, 2, 3)) is None


def test_a_figure_of_another_place_time_or_kernel_version_settles_nothing(
    store, run, device, environment, problem, kernel, make_trial, monkeypatch
):
    store.record(run, [make_trial(16)])
    newer_triton = dataclasses.replace(environment, triton="3.8.0")
    assert store.settled(KNOWN["sm_100"], environment, problem, [kernel]) == {}
    assert store.settled(device, newer_triton, problem, [kernel]) == {}
    assert store.settled(device, environment, problem.with_shape(1, 2, 3), [kernel]) == {}
    assert store.settled(device, environment, problem, [dataclasses.replace(kernel, version=2)]) == {}
    assert store.settled(device, environment, problem, []) == {}
    monkeypatch.setattr("tuner.store.trials.PROTOCOL", records.PROTOCOL + 1)
    assert store.settled(device, environment, problem, [kernel]) == {}


def test_a_changed_source_of_the_same_version_keeps_its_figures(
    store, run, device, environment, problem, kernel, make_trial
):
    edited = dataclasses.replace(kernel, source_hash="b1")
    store.record(run, [make_trial(16), make_trial(16, by=edited, on=problem.with_shape(8, 8, 8)), make_trial(32)])
    assert len(store.settled(device, environment, problem, [edited])) == 2


def test_a_wrong_result_is_settled_only_under_the_source_that_called_it_wrong(
    store, run, device, environment, problem, kernel, make_trial
):
    wrong = Outcome(State.WRONG_RESULT, "off by 2", error=2.0)
    store.record(run, [dataclasses.replace(make_trial(16), outcome=wrong)])
    (outcome,) = store.settled(device, environment, problem, [kernel]).values()
    assert outcome.state is State.WRONG_RESULT
    mended = dataclasses.replace(kernel, source_hash="b1")
    assert store.settled(device, environment, problem, [mended]) == {}
    second = store.begin_run(device, environment, argv=[], host="node1")
    store.record(second, [make_trial(16, by=mended)])
    (outcome,) = store.settled(device, environment, problem, [mended]).values()
    assert outcome.state is State.COMPLETE


def test_configs_of_two_kernels_with_equal_parameters_stay_apart(
    store, run, device, environment, problem, kernel, make_trial
):
    other = dataclasses.replace(kernel, name="split_k")
    store.record(run, [make_trial(16), make_trial(16, by=other)])
    assert {config.kernel for config in store.settled(device, environment, problem, [kernel, other])} == {
        "pointer",
        "split_k",
    }
    assert {config.kernel for config in store.settled(device, environment, problem, [other])} == {"split_k"}


def test_a_batch_with_one_bad_trial_is_not_recorded_at_all_and_the_store_goes_on(store, run, make_trial, problem):
    store.record(run, [make_trial(16)])
    fresh = make_trial(64, on=problem.with_shape(7, 7, 7))
    with pytest.raises(StoreError, match=r"tuner\.db: UNIQUE constraint failed: trial\.run_id"):
        store.record(run, [make_trial(32), fresh, make_trial(16)])
    assert [row.config["BLOCK_SIZE_M"] for row in store.trials()] == [16]
    store.record(run, [make_trial(32), fresh])
    assert store.count_trials() == 3


def test_a_complete_trial_without_a_time_is_refused(store, run, make_trial):
    with pytest.raises(StoreError, match="ck_trial_timed"):
        store.record(run, [make_trial(16, math.nan)])


def test_recording_nothing_is_fine(store, run):
    store.record(run, [])
    assert store.count_trials() == 0


def test_a_batch_larger_than_one_statement_may_bind_is_recorded(store, run, device, environment, problem, kernel):
    configs = [Config("pointer", BLOCK_SIZE_M=block) for block in range(1, 1300)]
    store.record(run, [Trial(problem, config, kernel, Outcome(State.INVALID)) for config in configs])
    assert set(store.settled(device, environment, problem, [kernel])) == set(configs)


def test_a_verdict_becomes_the_winner_with_its_evidence(store, run, device, environment, problem, kernel, make_trial):
    best, tie = make_trial(128), make_trial(64)
    store.record(run, [best, tie])
    assert store.winner(device, environment, problem) is None
    store.decide(run, problem, kernel, verdict(best, tie, median_us=9.75))
    winner = store.winner(device, environment, problem)
    assert winner is not None
    assert (winner.device, winner.environment, winner.problem) == (device, environment, problem)
    assert (winner.config, winner.kernel_version, winner.ties) == (best.config, 1, 2)
    assert (winner.median_us, winner.default_us, winner.vendor_us) == (9.75, 12.0, 11.0)
    assert (winner.protocol, winner.tool_version) == (run.protocol, run.tool_version)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", winner.decided_at)
    assert store.winners() == [winner]


def test_a_newer_verdict_supersedes_the_winner_and_keeps_it(
    store, database, run, device, environment, problem, kernel, make_trial
):
    trials = [make_trial(block) for block in (16, 32, 64)]
    store.record(run, trials)
    for trial in trials:
        store.decide(run, problem, kernel, verdict(trial))
    assert [winner.config["BLOCK_SIZE_M"] for winner in store.winners()] == [64]
    with closing(sqlite3.connect(database)) as plain:
        history = plain.execute("SELECT winner_id, superseded_by FROM winner ORDER BY winner_id").fetchall()
    assert history == [(1, 2), (2, 3), (3, None)]


def test_two_current_winners_of_one_problem_are_impossible(
    store, database, run, device, environment, problem, kernel, make_trial
):
    store.record(run, [make_trial(16)])
    store.decide(run, problem, kernel, verdict(make_trial(16)))
    columns = "device_id, environment_id, problem_id, config_id, trial_id, run_id, median_us, ties, decided_at"
    with closing(sqlite3.connect(database)) as plain, pytest.raises(sqlite3.IntegrityError):
        plain.execute(f"INSERT INTO winner ({columns}) SELECT {columns} FROM winner")


def test_each_environment_has_a_winner_of_its_own(store, device, environment, problem, kernel, make_trial):
    for triton, block in (("3.7.1", 16), ("3.8.0", 32)):
        there = dataclasses.replace(environment, triton=triton)
        run = store.begin_run(device, there, argv=[], host="node1")
        store.record(run, [make_trial(block)])
        store.decide(run, problem, kernel, verdict(make_trial(block)))
    assert [(w.environment.triton, w.config["BLOCK_SIZE_M"]) for w in store.winners()] == [("3.7.1", 16), ("3.8.0", 32)]


def test_a_config_that_was_measured_by_an_earlier_run_can_win(
    store, run, device, environment, problem, kernel, make_trial
):
    store.record(run, [make_trial(16)])
    second = store.begin_run(device, environment, argv=[], host="node1")
    store.decide(second, problem, kernel, verdict(make_trial(16)))
    assert len(store.winners()) == 1


@pytest.mark.parametrize("state", [state for state in State if state is not State.COMPLETE])
def test_a_config_without_a_complete_trial_cannot_win(store, run, problem, kernel, make_trial, state):
    store.record(run, [make_trial(16, state=state)])
    with pytest.raises(StoreError, match="cannot win: no COMPLETE trial"):
        store.decide(run, problem, kernel, verdict(make_trial(16)))
    assert store.winners() == []


def test_winners_come_sorted_whatever_the_order_they_were_decided_in(store, environment, kernel, make_trial):
    problems = [Problem(m, 64, 64, dtype=dtype) for m in (512, 8) for dtype in ("float32", "bf16")]
    for device in (KNOWN["sm_90"], KNOWN["sm_80"]):
        run = store.begin_run(device, environment, argv=[], host="node1")
        for problem in problems:
            store.record(run, [make_trial(16, on=problem)])
            store.decide(run, problem, kernel, verdict(make_trial(16)))
    found = [(winner.device.slug, winner.problem) for winner in store.winners()]
    assert found == sorted(found)
    assert len(found) == 8
    h200 = KNOWN["sm_90"].slug
    assert [winner.problem for winner in store.winners(device_slug=h200)] == sorted(problems)
    assert store.winners(device_slug="nobody-has-it") == []


def test_problems_with_extras_come_back_whole(store, run, device, environment, kernel, make_trial):
    problem = Problem(8, 8, 8, op="grouped", extras={"groups": 4, "ragged": True, "act": "silu", "scale": 0.5})
    store.record(run, [make_trial(16, on=problem)])
    assert len(store.settled(device, environment, problem, [kernel])) == 1
    assert store.problems()[0].problem == problem


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("postgresql://u:se/cr&et@host:5432/db", "postgresql://u:***@host:5432/db"),
        ("--db=postgresql://u:secret@host/db", "--db=postgresql://u:***@host/db"),
        ("postgresql://u@host/db?password=s@cret&port=5432", "postgresql://u@host/db?password=***&port=5432"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
    ],
)
def test_a_command_line_is_kept_without_the_password(store, device, environment, typed, kept):
    store.begin_run(device, environment, argv=["tuner", typed], host="node1")
    assert store.runs()[0].argv == ("tuner", kept)


def test_a_file_has_one_writer_by_whichever_link_it_is_reached(database, store, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(database)
    refused = pytest.raises(StoreError, match=r"link\.db: wait until it has ended")
    with store.sole_writer(), Store.open(link) as other, refused, other.sole_writer():
        pass


BEGIN = """
import sys
from tuner.hardware.device import INTERPRETER, Environment
from tuner.store.store import Store
with Store.open(sys.argv[1]) as store, store.sole_writer():
    print(store.begin_run(INTERPRETER, Environment("", "", "", "", ""), argv=[], host="node1").uuid, flush=True)
    sys.stdin.read()
"""


def change(database, statement, *values):
    with closing(sqlite3.connect(database)) as plain, plain:
        plain.execute(statement, values)


def statuses(store):
    return {row.uuid: row.status for row in store.runs()}


@pytest.mark.parametrize("node", ["of this machine", "of another machine", None])
def test_a_killed_run_of_this_machine_is_interrupted_by_the_next_and_one_elsewhere_when_it_is_silent(
    database, store, device, environment, python, node
):
    killed = python(BEGIN, database)
    uuid = killed.stdout.readline().strip()
    killed.kill()
    killed.wait()
    if node != "of this machine":
        change(database, "UPDATE run SET node = ?", node)
    with store.sole_writer():
        store.begin_run(device, environment, argv=[], host="node1")
        assert statuses(store)[uuid] == ("INTERRUPTED" if node == "of this machine" else "RUNNING")
        change(database, "UPDATE run SET heartbeat_at = strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '-61 seconds')")
        store.begin_run(device, environment, argv=[], host="node1")
    assert statuses(store)[uuid] == "INTERRUPTED"


def test_without_the_lock_a_run_that_gives_signs_of_life_is_never_taken_for_dead(store, device, environment):
    begun = [store.begin_run(device, environment, argv=[], host="node1").uuid for _ in range(3)]
    assert statuses(store) == dict.fromkeys(begun, "RUNNING")


@pytest.mark.parametrize("heartbeat_at", [None, "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"])
def test_a_run_that_was_taken_for_dead_and_goes_on_is_running_again(
    database, store, run, device, environment, heartbeat_at
):
    change(database, "UPDATE run SET heartbeat_at = ?", heartbeat_at)
    done = store.begin_run(device, environment, argv=[], host="node1")
    store.end_run(done, RunStatus.DONE)
    assert statuses(store) == {run.uuid: "INTERRUPTED", done.uuid: "DONE"}
    store.heartbeat(run)
    store.begin_run(device, environment, argv=[], host="node1")
    assert (statuses(store)[run.uuid], statuses(store)[done.uuid]) == ("RUNNING", "DONE")


def test_a_clock_that_a_driver_gives_later_is_kept_and_does_not_change(store, device, environment):
    for clock_mhz, expected in ((None, None), (1980, 1980), (1830, 1980)):
        store.begin_run(dataclasses.replace(device, clock_mhz=clock_mhz), environment, argv=[], host="here")
        (row,) = store.devices()
        assert row.device.clock_mhz == expected


def test_another_name_of_a_device_is_kept_as_its_alias(store, environment):
    plain = KNOWN["gfx942"]
    for name in (plain.name, "AMD Instinct MI300X OAM", "AMD Instinct MI300X VF", "AMD Instinct MI300X OAM"):
        store.begin_run(dataclasses.replace(plain, name=name), environment, argv=[], host="node1")
    (row,) = store.devices()
    assert row.device == plain
    assert row.aliases == ("AMD Instinct MI300X OAM", "AMD Instinct MI300X VF")
    assert row.runs == 4


def test_a_second_process_reads_while_the_first_writes(store, database, run, make_trial):
    with Store.open(str(database), read_only=True) as reader:
        for block in (16, 32, 64):
            store.record(run, [make_trial(block)])
            assert reader.count_trials() == store.count_trials()


def test_a_read_only_store_writes_nothing(store, database, run, device, environment, make_trial):
    with Store.open(str(database), read_only=True) as reader:
        with pytest.raises(StoreError, match="not writable"):
            reader.record(run, [make_trial(16)])
        with pytest.raises(StoreError, match="not writable"):
            reader.begin_run(device, environment, argv=[], host="node1")
    assert store.count_trials() == 0


def test_a_closed_store_leaves_one_file(database, store):
    with Store.open(str(database), read_only=True) as reader:
        reader.devices()
    store.close()
    assert [entry.name for entry in database.parent.iterdir()] == ["tuner.db"]


def test_a_row_that_cannot_be_read_is_left_out_and_named(
    store, database, run, make_trial, device, environment, problem, kernel, caplog
):
    store.record(run, [make_trial(16), make_trial(32)])
    store.close()
    with closing(sqlite3.connect(database)) as plain, plain:
        plain.execute("UPDATE config SET parameters = '[1]' WHERE config_id = 1")
    with Store.open(str(database)) as reopened:
        settled = reopened.settled(device, environment, problem, [kernel])
    assert [config["BLOCK_SIZE_M"] for config in settled] == [32]
    assert "1 damaged row left out: row 1 of config: " in caplog.text


def test_the_hot_queries_use_indices(store, database, run, make_trial, problem, kernel):
    with closing(sqlite3.connect(database)) as plain:

        def plan(query: str) -> str:
            return " ".join(row[3] for row in plain.execute(f"EXPLAIN QUERY PLAN {query}"))

        of_device = "SELECT * FROM winner JOIN device USING (device_id) WHERE slug = '' AND superseded_by IS NULL"
        assert "USING INDEX ix_winner_current" in plan(of_device)
        settled = """SELECT * FROM trial JOIN run USING (run_id) JOIN config USING (config_id)
            JOIN kernel USING (kernel_id) WHERE problem_id = 1 AND device_id = 1 AND run.protocol = 1"""
        assert "SCAN trial" not in plan(settled)


def test_times_are_utc_to_the_second():
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", records.now())


def test_the_newest_is_listed_first_also_where_a_merge_brought_it_in_before(store, database, run, make_trial):
    store.record(run, [make_trial(16)])
    store.record(run, [make_trial(32)])
    with closing(sqlite3.connect(database)) as plain, plain:
        plain.execute("UPDATE trial SET measured_at = '2030-01-01T00:00:00Z' WHERE trial_id = 1")
    assert [row.trial_id for row in store.trials()] == [1, 2]


def test_a_database_is_named_by_a_path_too_and_by_no_empty_word(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_DB", str(tmp_path / "mine.db"))
    with Store.open(tmp_path / "named.db") as store:
        assert store.location == str(tmp_path / "named.db")
    with pytest.raises(UsageError, match="name is empty"):
        Store.open("")
    assert not (tmp_path / "mine.db").exists()


def test_runs_since_one_are_it_and_those_that_began_later_whatever_the_order_of_their_ids(store, device, environment):
    runs = [store.begin_run(device, environment, argv=[], host="node1") for _ in range(17)]
    with closing(sqlite3.connect(store.location)) as plain, plain:  # as of runs that were merged
        plain.execute("UPDATE run SET started_at = '2020-01-01T00:00:00Z' WHERE run_id = ?", (runs[4].id,))
        plain.execute("UPDATE run SET started_at = '2099-01-01T00:00:00Z' WHERE run_id = ?", (runs[0].id,))
    assert store.runs_since(runs[14].name) == {runs[0].id, runs[14].id, runs[15].id, runs[16].id}
    assert store.runs_since(runs[0].uuid) == {runs[0].id}
    first = [run.uuid[0] for run in runs]
    shared = next(digit for digit in first if first.count(digit) > 1)  # 17 runs, 16 digits
    with pytest.raises(StoreError, match=f"several runs begin with '{shared}': `tuner show runs` lists them"):
        store.runs_since(shared)
