"""What a worker does between its requests."""

from types import SimpleNamespace

import pytest

from tuner.hardware.device import INTERPRETER, KNOWN
from tuner.kernel import registry
from tuner.store.records import State
from tuner.sweep import messages, worker
from tuner.sweep.measure import Measurement
from tuner.sweep.nvml import Clocks
from tuner.sweep.timer import HostTimer


@pytest.mark.parametrize(("device", "warmed"), [(KNOWN["sm_90"], 1), (INTERPRETER, 0)])
def test_a_gpus_worker_warms_up_once_after_it_said_that_its_first_problem_is_ready(faulty, monkeypatch, device, warmed):
    events = []
    warm_up = Measurement.warm_up
    monkeypatch.setattr(Measurement, "warm_up", lambda self: (events.append("warm"), warm_up(self)))
    connection = SimpleNamespace(send=lambda reply: events.append(type(reply).__name__))
    session = SimpleNamespace(device=device, timer=HostTimer(), clocks=Clocks(), torch_device="cpu")
    handler = worker._ProblemHandler(session)
    for count in (1, 2):
        assert handler.answer(messages.SetProblem(faulty(configs=count)), connection)
    assert events == ["Ready", *["warm"] * warmed, "Ready"]


def test_a_config_is_measured_after_a_warm_up_as_without_one(faulty):
    problem = faulty(configs=2, behaviours="good,wrong")
    (spec,) = registry.serving(problem, INTERPRETER)
    measurement = Measurement(spec, problem, HostTimer(), Clocks(), "cpu")
    measurement.warm_up()
    configs = spec.space(problem, INTERPRETER).configs()
    outcomes = measurement.search(configs, lambda _config: None, drop=())
    assert {outcome.state for _, outcome in outcomes} == {State.COMPLETE, State.WRONG_RESULT}
