"""When a node's work is over."""

from __future__ import annotations

import pytest

from tuner.fleet.feed import Feed
from tuner.fleet.messages import Hello
from tuner.hardware.device import KNOWN, Environment
from tuner.problem import Problem
from tuner.problem.family import ladders
from tuner.store.store import Store
from tuner.sweep.ladder import Result
from tuner.sweep.shared_agenda import SharedAgenda
from tuner.version import __version__

HELLO = Hello("a", 1, KNOWN["sm_90"], Environment("3.7.1", "2.13.0", "", "", "3.11"), __version__, {})


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "tuner.db") as store:
        yield store


def test_a_ladder_is_over_only_once_its_family_is_written(store):
    feed = Feed(lambda _config, _problem: None)
    (ladder,) = ladders(range(1, 3), lambda m: Problem(m, 16, 16))
    run = store.begin_run(HELLO.device, HELLO.environment, argv=[], host="a")
    agenda = SharedAgenda(store, run, feed, fresh=False)
    feed.offer([ladder])
    for step in [*iter(agenda.take, None)]:
        agenda.ended(step.problem, Result(None), ())
        assert not feed.over  # here a sweep writes what has ended
        agenda.release(step.problem)
    assert list(feed.over) == [ladder]
