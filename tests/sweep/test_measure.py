"""How a problem is measured beside other workers' problems: what it does behind the gate, and whom it blames."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager

from tuner.hardware.device import INTERPRETER
from tuner.kernel import registry
from tuner.store.records import State
from tuner.sweep.measure import Measurement
from tuner.sweep.nvml import GpuMonitor
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
    measurement = Measurement(spec, problem, HostTimer(gate), GpuMonitor(), "cpu")
    outcomes = dict(measurement.search(configs, gate.told.append, drop=()))
    assert outcomes.keys() == set(configs)
    assert gate.told == ["shared", *configs, None, "free", "alone", *good, None, "free"]
    gate.told.clear()
    times, rejected = measurement.finals(configs, seed=0, heartbeat=gate.told.append)
    assert times.keys() == {*(config.digest for config in good), "vendor"}
    assert rejected.keys() == {config.digest for config in configs} - times.keys()
    rounds = [None] * (1 + HostTimer.final_rounds)
    assert gate.told == ["shared", *configs, None, "free", "alone", *rounds, "free"]


class CompiledTimer(HostTimer):
    """Times what would need binaries."""

    launches_binaries = True


def test_binaries_are_read_before_the_gate_and_what_fails_there_is_left_to_the_launch(faulty, monkeypatch):
    import faulty_kernels

    problem, gate = faulty(behaviours="good,raise", configs=2), Gate()

    def read(_problem, config):
        gate.told.append(f"read {config.digest}")
        raise OSError("the cache is gone")

    spec = dataclasses.replace(faulty_kernels.SPEC, compile=read)
    configs = spec.space(problem, INTERPRETER).configs()
    measurement = Measurement(spec, problem, CompiledTimer(gate), GpuMonitor(), "cpu")
    with monkeypatch.context() as patched:
        patched.setattr(registry, "find", lambda *_: spec)
        outcomes = dict(measurement.search(configs, gate.told.append, drop=()))
    read_first = [told for config in configs for told in (config, f"read {config.digest}")]
    assert gate.told[: len(read_first) + 2] == [*read_first, None, "shared"]
    assert {outcome.state for outcome in outcomes.values()} == {State.COMPLETE, State.RUNTIME_ERROR}
