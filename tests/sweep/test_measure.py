"""How a problem is measured beside other workers' problems: what it does behind the gate, and whom it blames."""

from __future__ import annotations

from contextlib import contextmanager

from tuner.hardware.device import INTERPRETER
from tuner.sweep.measure import Measurement
from tuner.sweep.nvml import Clocks
from tuner.sweep.timer import HostTimer


class Gate:
    """Notes when it is passed and left."""

    def __init__(self):
        self.told = []

    @contextmanager
    def shared(self):
        self.told.append("shared")
        yield
        self.told.append("free")

    @contextmanager
    def alone(self):
        self.told.append("alone")
        yield
        self.told.append("free")


def test_configs_are_prepared_beside_others_and_timed_alone_and_none_is_blamed_while_it_waits(faulty):
    import faulty_kernels

    problem, gate = faulty(behaviours="good,raise", configs=2), Gate()
    spec = faulty_kernels.SPEC
    configs = spec.space(problem, INTERPRETER).configs()
    good = [config for config in configs if config["behaviour"] == "good"]
    measurement = Measurement(spec, problem, HostTimer(gate), Clocks(), "cpu")
    outcomes = dict(measurement.search(configs, gate.told.append, drop=()))
    assert outcomes.keys() == set(configs)
    assert gate.told == ["shared", *configs, None, "free", "alone", *good, None, "free"]
    gate.told.clear()
    times, rejected = measurement.finals(configs, seed=0, heartbeat=gate.told.append)
    assert times.keys() == {*(config.digest for config in good), "vendor"}
    assert rejected.keys() == {config.digest for config in configs} - times.keys()
    rounds = [None] * (1 + HostTimer.final_rounds)
    assert gate.told == ["shared", *configs, None, "free", "alone", *rounds, "free"]
