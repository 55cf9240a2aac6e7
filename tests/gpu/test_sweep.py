"""A sweep on a real GPU: real winners, and configs that poison the context, hang, or write where they must not."""

import os
import sys
from pathlib import Path

import pytest
import torch
from triton import knobs

from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import State
from tuner.store.store import Store
from tuner.sweep import worker
from tuner.sweep.plan import Plan
from tuner.sweep.run import sweep
from tuner.sweep.strategies import EXHAUSTIVE, RANDOM

FAULTY = Path(__file__).parent / "faulty"


@pytest.fixture
def store(tmp_path):
    with Store.open(str(tmp_path / "tuner.db")) as store:
        yield store


@pytest.fixture
def faulty(monkeypatch):
    monkeypatch.syspath_prepend(FAULTY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAULTY), os.environ.get("PYTHONPATH", "")]))
    registry.forget()
    yield Problem(1024, 1024, 1, dtype="float32", op="faulty_gpu")
    registry.forget()
    sys.modules.pop("faulty_gpu", None)


def test_an_illegal_access_a_hang_and_a_stray_write_become_states_and_the_sweep_goes_on(faulty, store, monkeypatch):
    monkeypatch.setattr(worker, "TRIAL_LIMIT_S", 5.0)
    (ended,) = sweep(store, [faulty], [0], Plan(EXHAUSTIVE)).problems
    found = {trial.config["behaviour"]: trial.outcome for trial in store.trials()}
    assert {name: outcome.state for name, outcome in found.items()} == {
        "good": State.COMPLETE,
        "wrong": State.WRONG_RESULT,
        "stray": State.WRONG_RESULT,
        "illegal": State.RUNTIME_ERROR,
        "hang": State.TIMEOUT,
    }
    assert found["stray"].message == "wrote outside its output"
    assert "illegal memory access" in found["illegal"].message
    assert ended.winner.config == Config("faulty_gpu", behaviour="good", BLOCK=1024, num_warps=4)
    assert ended.winner.vs_vendor > 0.5


def can_tell_registers():
    try:
        return bool(knobs.nvidia.cuobjdump.path)
    except RuntimeError:  # this Triton came without
        return False


def test_trials_of_a_gemm_hold_figures_resources_and_clocks(store):
    problem = Problem(1024, 1024, 1024, dtype="bfloat16", layout="nt")
    report = sweep(store, [problem], [0], Plan(RANDOM, trials=12))
    (ended,) = report.problems
    assert ended.winner.vs_default >= 0.995
    assert ended.winner.vs_vendor is not None
    complete = [trial.outcome for trial in store.trials() if trial.outcome.state is State.COMPLETE]
    assert len(complete) > 3
    for outcome in complete:
        assert outcome.p20_us <= outcome.median_us <= outcome.p80_us
        if can_tell_registers():
            assert outcome.resources.registers > 16
            assert outcome.resources.spill_bytes is not None
        assert outcome.resources.shared_bytes > 0
        assert 0 < outcome.error < 0.1
        assert outcome.sm_clock_mhz > 200
        assert outcome.power_w > 30
        assert outcome.throttle is not None


def test_a_second_sweep_measures_nothing(store):
    problem = Problem(256, 256, 256, dtype="float16")
    first = sweep(store, [problem], [0], Plan(RANDOM, trials=6)).problems[0]
    second = sweep(store, [problem], [0], Plan(RANDOM, trials=6)).problems[0]
    assert (second.measured, second.resumed) == (0, first.measured)
    assert second.winner == first.winner


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_share_a_sweep(store):
    problems = [Problem(size, 1024, 1024, dtype="bfloat16", layout="nt") for size in (256, 512, 1024, 2048)]
    report = sweep(store, problems, [0, 1], Plan(RANDOM, trials=24))
    assert all(problem.winner is not None for problem in report.problems)
    assert len(report.problems) == 4
