"""The finals are played on operands in other memory than the search's, which a search's leaders may owe their lead."""

from __future__ import annotations

import dataclasses
from statistics import mean
from types import SimpleNamespace

import pytest
import torch

from tuner.hardware.device import INTERPRETER
from tuner.sweep import measure
from tuner.sweep.job import Job
from tuner.sweep.measure import Measurement
from tuner.sweep.nvml import GpuMonitor
from tuner.sweep.search_task import make_search_task
from tuner.sweep.strategies import EXHAUSTIVE
from tuner.sweep.timer import GraphTimer, HostTimer

MIB = 1 << 20
US = 100.0
GIFT, BURDEN = 0.96, 1.03
SEARCH_SETS = 2


class Placed(HostTimer):
    """Takes a call's time from the config and from which set of operands it is given, as if from where that lies."""

    search_rounds, final_rounds, max_final_rounds = 3, 30, 150

    def __init__(self, launched, us, final_sets):
        super().__init__()
        self._launched, self._us, self._final_sets = launched, us, final_sets

    def buffer_sets(self, nbytes):
        return SEARCH_SETS

    def final_sets(self, nbytes):
        return self._final_sets

    def prepare(self, call, sets):
        self._launched.clear()
        for index in range(sets):
            call(index)
        return mean(self._us(*each) for each in self._launched)

    def replay(self, captures):
        return list(captures)


def us(config, made):
    """By the config, None for torch's library, and how many sets of operands were made before this one."""
    if config is None or config["index"] != 1:
        return US
    return US * (GIFT if made < SEARCH_SETS else BURDEN)


@pytest.fixture
def decide(faulty, monkeypatch):
    """Searches two configs and plays the finals, in which the first is the default; returns the verdict."""
    import faulty_kernels

    original = faulty_kernels.SPEC
    problem = faulty(configs=2)
    launched, made, numbers = [], [], {}

    def make_inputs(*arguments):
        inputs = original.make_inputs(*arguments)
        numbers[id(inputs)] = len(made)
        made.append(inputs)
        return inputs

    def launch(inputs, config):
        original.launch(inputs, config)
        launched.append((config, numbers[id(inputs)]))

    def vendor(inputs):
        original.vendor(inputs)
        launched.append((None, numbers[id(inputs)]))

    spec = dataclasses.replace(original, make_inputs=make_inputs, launch=launch, vendor=vendor)
    monkeypatch.setattr(measure, "registry", SimpleNamespace(find=lambda *_: spec))

    def verdict(final_sets):
        measurement = Measurement(spec, problem, Placed(launched, us, final_sets), GpuMonitor(), "cpu")
        job = Job(make_search_task(problem, INTERPRETER), EXHAUSTIVE)
        job.resume({})
        for config, outcome in measurement.search(job.take(9, None)[0], lambda _config: None, drop=()):
            job.finish(config, outcome)
        times, _ = measurement.finals(job.finalists(), seed=0, heartbeat=lambda _config: None)
        return job.verdict(times)

    return verdict


def test_a_config_that_the_searchs_memory_flatters_does_not_win(decide):
    verdict = decide(final_sets=8)
    assert (verdict.config["index"], verdict.median_us) == (0, US)
    assert (verdict.default_us, verdict.vendor_us) == (US, US)


def test_where_memory_is_short_the_finals_are_played_on_the_searchs_operands(decide):
    verdict = decide(final_sets=0)
    assert verdict.config["index"] == 1
    assert verdict.default_us / verdict.median_us == pytest.approx(1 / GIFT)


def test_a_librarys_call_that_cannot_be_captured_leaves_the_finals_without_its_figure(decide, monkeypatch):
    prepare = Placed.prepare

    def refuse(self, call, sets):
        figure = prepare(self, call, sets)
        if self._launched[0][0] is None:
            raise RuntimeError("operation not permitted when stream is capturing")
        return figure

    monkeypatch.setattr(Placed, "prepare", refuse)
    verdict = decide(final_sets=8)
    assert (verdict.config["index"], verdict.vendor_us) == (0, None)


@pytest.mark.parametrize(
    ("mib", "free_mib", "sets"),
    [
        (1, 70_000, 0),  # 250 small ones lie everywhere
        (225, 70_000, 8),
        (225, 7_100, 2),
        (225, 1_700, 0),
        (500, 70_000, 4),
        (3_000, 70_000, 2),
    ],
)
def test_the_finals_make_more_sets_of_large_operands_as_far_as_memory_goes(mib, free_mib, sets, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_mib * MIB, 80_000 * MIB))
    timer = GraphTimer.__new__(GraphTimer)
    timer._l2_bytes = 50 * MIB
    assert timer.final_sets(mib * MIB) == sets
