"""Which stored winners a run keeps."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from tuner.errors import KernelError
from tuner.hardware.device import KNOWN, Environment
from tuner.kernel import registry
from tuner.problem import Problem
from tuner.store.records import Outcome, State, Trial, Verdict
from tuner.store.store import Store
from tuner.sweep.counted import Counted
from tuner.sweep.history import History
from tuner.sweep.job import version_of
from tuner.sweep.race import RACE


def test_a_winner_is_kept_until_a_trial_is_newer_as_of_a_run_that_stopped_before_its_finals(tmp_path):
    device, environment = KNOWN["sm_90"], Environment("3.7.1", "2.13.0", "cuda 13.0", "580.65", "3.11.2")
    problem = Problem(4096, 4096, 1024, dtype="bf16", layout="nt")
    spec = registry.find("matmul", "pointer")
    config, path = registry.ask(spec, "default_config", problem, device), tmp_path / "tuner.db"
    with Store.open(path) as store:
        run = store.begin_run(device, environment, argv=[], host="here")
        store.record(run, [Trial(problem, config, version_of(spec), Outcome(State.COMPLETE, median_us=9.0))])
        store.decide(run, problem, version_of(spec), Verdict(config, 9.0, None, None, ties=(config,)))
        history = History(store, device, environment)
        kept = history.winner_without_job(problem, RACE)
        assert kept is not None
        assert kept.config == config
        for ids, settled in ((frozenset(), {}), (frozenset({run.id}), history.settled(problem))):
            counting = History(store, device, environment, Counted(ids))
            assert counting.settled(problem) == settled
            assert (counting.winner_without_job(problem, RACE) is not None) is bool(settled)
            assert counting.undecided([problem]) == ([] if settled else [problem])
        with closing(sqlite3.connect(path)) as plain, plain:
            plain.execute("UPDATE trial SET measured_at = '9999-01-01T00:00:00Z'")
        assert history.winner_without_job(problem, RACE) is None


def test_nothing_is_owed_where_a_kernels_own_code_fails(tmp_path, monkeypatch):
    device, environment = KNOWN["sm_90"], Environment("3.7.1", "2.13.0", "cuda 13.0", "580.65", "3.11.2")
    problem = Problem(4096, 4096, 1024, dtype="bf16", layout="nt")
    config = registry.default_config(problem, device)
    with Store.open(tmp_path / "tuner.db") as store:
        history = History(store, device, environment)
        assert not history.has_tried(problem, (config,))

        def fail(*_args, **_options):
            raise KernelError("its rule has a bug")

        monkeypatch.setattr(registry, "serving", fail)
        assert history.has_tried(problem, (config,))
