"""What `tuner retime` makes of paired rounds: a row that seems lost is played again in another process."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from tuner.bench import retime
from tuner.bench.retime import State
from tuner.errors import StoreError, SweepError
from tuner.hardware.device import KNOWN, Environment
from tuner.lookup import match_rules
from tuner.store.store import Store
from tuner.sweep.measure import VENDOR
from tuner.sweep.messages import FinalsPlayed

NAMES = {1: "steady", 2: "moody", 3: "slower", 4: "broken"}
VENDOR_US = 125.0
US = {
    "steady": ([100.0], [100.0]),
    "moody": ([103.0], [100.0]),
    "slower": ([104.0], [104.0]),
    "broken": ([104.0], "it crashed"),
}
"""By row, its times in the first process and in the second; a library takes 1.25 times 100 us in both."""


class Runner:
    """Plays rows in processes whose figures are known."""

    device = KNOWN["sm_90"]

    def __init__(self):
        self.process, self.played = 0, []

    def compile(self, todo):
        return dict.fromkeys([], "")

    def play(self, problem, configs):
        name = NAMES[problem.m]
        self.played.append((self.process, name))
        us = US[name][self.process]
        return us if isinstance(us, str) else FinalsPlayed({configs[0].digest: us, VENDOR: [VENDOR_US]}, {})

    def restart(self):
        self.process += 1


@pytest.mark.parametrize("raised", [KeyboardInterrupt, StoreError])
def test_winners_are_kept_whole_or_not_at_all(raised, tmp_path, monkeypatch):
    def decide(*_):
        raise raised

    monkeypatch.setattr(retime, "_decide", decide)
    with Store.open(tmp_path / "tuner.db") as store:
        runner = SimpleNamespace(device=Runner.device, environment=Environment("3.7.1", "2.13.0", "", "", "3.11"))
        with pytest.raises(raised):
            retime.keep(store, [None], runner, [])
        assert store.runs() == []


@pytest.fixture
def runner(monkeypatch):
    monkeypatch.setattr(match_rules, "refusal", lambda *_: None)
    monkeypatch.setattr(retime, "_default", lambda *_: None)
    return Runner()


def test_a_row_that_seems_lost_is_judged_by_two_processes(runner, make_row):
    rows = [dataclasses.replace(make_row(m), vs_default=None, vs_vendor=1.25) for m in NAMES]
    found = {NAMES[one.row.problem.m]: one for one in retime.retime(rows, runner, 0.02)}
    assert {name: one.state for name, one in found.items()} == {
        "steady": State.HOLDS,
        "moody": State.HOLDS,
        "slower": State.LOST,
        "broken": State.FAILED,
    }
    assert found["moody"].loss == pytest.approx((1.03 * 1.0) ** 0.5 - 1)
    assert found["slower"].loss == pytest.approx(0.04)
    assert (found["moody"].samples, found["steady"].samples) == (2, 1)
    assert found["broken"].reason == "it crashed"
    assert [name for process, name in runner.played if process] == ["moody", "slower", "broken"]


@pytest.mark.parametrize("again", [SweepError("the worker did not start"), FinalsPlayed({}, {})], ids=["none", "alone"])
def test_a_second_process_that_says_nothing_leaves_the_first_one_s_word(again, runner, make_row, monkeypatch):
    row, first = dataclasses.replace(make_row(3), vs_default=None, vs_vendor=1.25), runner.play

    def play(problem, configs):
        if not runner.process:
            return first(problem, configs)
        if isinstance(again, Exception):
            raise again
        return FinalsPlayed({configs[0].digest: [104.0]}, {})  # torch's library did not run

    monkeypatch.setattr(runner, "play", play)
    (one,) = retime.retime([row], runner, 0.02)
    assert (one.state, one.samples) == (State.LOST, 1)


def test_a_default_that_ends_the_process_is_no_failure_of_the_row(runner, make_row, monkeypatch):
    default, first = make_row(1, block=128).config, runner.play
    monkeypatch.setattr(retime, "_default", lambda *_: default)
    monkeypatch.setattr(
        runner, "play", lambda problem, configs: "it crashed" if default in configs else first(problem, configs)
    )
    (one,) = retime.retime([dataclasses.replace(make_row(1), vs_default=None, vs_vendor=1.25)], runner, 0.02)
    assert (one.state, one.ratios) == (State.HOLDS, {VENDOR: 1.25})


def test_where_no_row_seems_lost_no_second_process_is_started(runner, make_row):
    (one,) = retime.retime([dataclasses.replace(make_row(1), vs_default=None, vs_vendor=1.25)], runner, 0.02)
    assert (one.state, runner.process) == (State.HOLDS, 0)
