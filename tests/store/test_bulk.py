"""Trials that are written past SQLAlchemy's own statements keep what every column promises."""

from __future__ import annotations

import dataclasses
import math
import pickle
import re

import pytest

from tuner.errors import StoreError
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import KernelVersion, Outcome, Resources, State, Trial
from tuner.store.rows import trial_values
from tuner.store.store import Store

KERNELS = [KernelVersion("matmul", name, 1, "none") for name in ("pointer", "tma")]
WHOLE = Outcome(State.COMPLETE, "", 10.0, 9.9, 10.1, 30, 1e-3, Resources(12.0, 128, 0, 65536), 1980, 650.0, 0, "G")


def trials(*outcomes, stages=range(3)):
    """Trials of two problems and two kernels in turn, so that neither come one after the other."""
    return [
        Trial(Problem(16 * m, 64, 64), Config(kernel.name, num_stages=stage), kernel, outcome)
        for stage in stages
        for m in (1, 2)
        for kernel, outcome in zip(KERNELS, outcomes * 2, strict=False)
    ]


@pytest.fixture
def opened(tmp_path):
    with Store.open(tmp_path / "tuner.db") as store:
        environment = Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7")
        yield store, store.begin_run(KNOWN["sm_90"], environment, argv=(), host="here")


def test_trials_of_several_problems_and_kernels_come_back_as_they_were(opened):
    store, run = opened
    failed = Outcome(State.RUNTIME_ERROR, "why", resources=Resources(compile_ms=3.0))
    given = trials(WHOLE, failed)
    store.record(run, given[:5])
    store.record(run, given[5:])
    found = {(row.problem, row.config, row.outcome) for row in store.trials()}
    assert found == {(each.problem, each.config, each.outcome) for each in given}


def test_rows_of_another_process_are_plain_values_and_come_back_as_the_trials_they_were(opened):
    store, run = opened
    given = trials(WHOLE, Outcome(State.RUNTIME_ERROR, "why", resources=Resources(compile_ms=3.0)))
    sent = pickle.dumps([trial_values(each) for each in given])
    for kind in (Trial, Config, Outcome, Resources, State):
        assert kind.__name__.encode() not in re.findall(rb"[A-Z][A-Za-z]+", sent)
    store.record_rows(run, pickle.loads(sent))
    found = {(row.problem, row.config, row.outcome) for row in store.trials()}
    assert found == {(each.problem, each.config, each.outcome) for each in given}


def test_a_problem_and_a_config_that_many_trials_have_are_read_once(opened, count_calls):
    store, run = opened
    store.record(run, trials(WHOLE, stages=range(50)))
    again = store.begin_run(run.device, run.environment, argv=(), host="here")
    store.record(again, trials(WHOLE, stages=range(50)))
    store.trials()
    assert count_calls(store.trials) < 400 * 140  # 122 a trial, and 158 where each makes its own


def test_what_a_column_cannot_hold_is_one_line_and_stores_nothing(opened):
    store, run = opened
    with pytest.raises(StoreError, match=r"trial\.samples holds -1: expected an integer") as raised:
        store.record(run, trials(WHOLE, dataclasses.replace(WHOLE, samples=-1)))
    assert str(raised.value).startswith(store.location)
    assert store.trials() == []


def test_words_that_no_database_holds_and_nan_are_kept_as_they_can_be(opened):
    store, run = opened
    odd = Outcome(State.WRONG_RESULT, "a\0b \ud800 \u00e4", error=math.nan, resources=Resources(shared_bytes=2**40))
    store.record(run, trials(WHOLE, odd))
    (message,) = {row.outcome.message for row in store.trials()} - {""}
    assert message == "a\\x00b \\ud800 \u00e4"
    outcomes = [row.outcome for row in store.trials() if row.outcome.state is State.WRONG_RESULT]
    assert {outcome.error for outcome in outcomes} == {None}
