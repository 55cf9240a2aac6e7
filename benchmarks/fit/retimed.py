"""A problem's configs measured once each, then the fastest together in rounds: one process a GPU."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from tuner.hardware import device as devices
from tuner.kernel import registry
from tuner.sweep.measure import Measurement
from tuner.sweep.nvml import Clocks
from tuner.sweep.timer import GraphTimer, HostTimer

NEAR = 1.2
"""Within this of the fastest a config plays the rounds."""
_BATCH = 16
_LEAST = 8
"""Configs that play at least: by these other figures are brought to the same scale."""


@dataclass(frozen=True)
class Rules:
    """How much is measured: the fastest `top` play `rounds`; no problem is begun after `deadline` (monotonic)."""

    top: int
    rounds: int
    deadline: float


@dataclass(frozen=True)
class Found:
    """What was measured of a problem.

    Attributes:
        us: one replay of each config that worked.
        failed: the others.
        rounds: of the fastest and the default, times by config, the i-th of all from one round.
        enter_ms, replay_ms: what a config costs to enter (launch, check, capture), and one replay.
        set_up_s: inputs and reference.
    """

    us: dict
    failed: list
    rounds: dict
    enter_ms: float
    replay_ms: float
    set_up_s: float


def take_gpu(slots):
    """Make a free GPU this process's own; "-1" is the interpreter."""
    gpu = slots.get()
    if gpu == "-1":
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def near(us, top=None):
    """Configs within reach of the fastest, from that on."""
    ranked = sorted((time_us, config) for config, time_us in us.items())
    within = [config for time_us, config in ranked if time_us <= NEAR * ranked[0][0]]
    return (within if len(within) >= _LEAST else [config for _, config in ranked[:_LEAST]])[:top]


def measure(problem, configs, rules):
    """Measure a problem's configs, its default among them; None when the time is up."""
    if time.monotonic() > rules.deadline:
        return None
    import torch

    here = devices.current()
    timer = HostTimer() if here.is_interpreter else GraphTimer(here.l2_bytes)
    timer.search_rounds = 1
    begin = time.perf_counter()
    with torch.no_grad() if here.is_interpreter else torch.cuda.stream(torch.cuda.Stream()):
        spec = registry.serving(problem, here)[0]
        measurement = Measurement(spec, problem, timer, Clocks(), "cpu" if here.is_interpreter else "cuda")
        set_up_s = time.perf_counter() - begin
        outcomes = dict(measurement.search(configs, lambda _config: None, drop=()))
        us = {config: outcome.median_us for config, outcome in outcomes.items() if outcome.median_us is not None}
        fastest = near(us, rules.top)
        begin = time.perf_counter()
        list(measurement.search(fastest[:_BATCH], lambda _config: None, drop=()))
        both_s = (time.perf_counter() - begin) / len(fastest[:_BATCH])
        playing = list(dict.fromkeys([*fastest, *(c for c in configs[:1] if c in us)]))
        rounds, replay_s = play(measurement, timer, playing, rules.rounds)
    failed = [config for config in outcomes if config not in us]
    return Found(us, failed, rounds, (both_s - replay_s) * 1e3, replay_s * 1e3, set_up_s)


def play(measurement, timer, configs, rounds):
    """Times of each config over rounds in rotation, and the seconds of one replay."""
    shots = {config: measurement._capture(measurement._call(config)) for config in configs}
    timer.replay(list(shots.values()))
    begin = time.perf_counter()
    times = [timer.replay(list(shots.values())) for _ in range(rounds)]
    replay_s = (time.perf_counter() - begin) / rounds / len(shots)
    return {config: list(of_one) for config, of_one in zip(shots, zip(*times, strict=True), strict=True)}, replay_s
