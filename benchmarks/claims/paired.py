"""Paired timings in one process, by protocol 1's clock and rounds; what the comparing benchmarks share."""

from __future__ import annotations

import contextlib

import torch

from tuner.hardware import device
from tuner.kernel import registry
from tuner.sweep import finals, nvml
from tuner.sweep.timer import GraphTimer


class Bench:
    """The first GPU of this process."""

    def __init__(self, watch):
        self.device = device.current(0)
        self.timer = GraphTimer(self.device.l2_bytes)
        self._clocks = watch

    def operands(self, problem):
        """Buffer sets of a problem, and its kernel."""
        spec = registry.serving(problem, self.device)[0]
        first = spec.make_inputs(problem, "cuda", 0)
        count = self.timer.buffer_sets(first.nbytes)
        return spec, [first, *(spec.make_inputs(problem, "cuda", seed) for seed in range(1, count))]

    def play(self, calls, sets):
        """Paired rounds of calls by name, each taking a buffer set's index; times by name."""
        shots = {}
        for name, call in calls.items():
            call(0)
            self.timer.synchronize()
            shots[name] = self.timer.capture(call, sets)
        return finals.play(
            list(shots),
            lambda names: self.timer.replay([shots[name] for name in names]),
            seed=1,
            rounds=self.timer.final_rounds,
            max_rounds=self.timer.max_final_rounds,
            flagged=lambda: self._clocks.read().flagged,
        )

    def ratios(self, problem, configs, *, base):
        """Each config's time over the base's, by paired medians."""
        _, sets = self.operands(problem)
        calls = {name: self.launcher(problem, config, sets) for name, config in configs.items()}
        return over(self.play(calls, len(sets)), base)

    @staticmethod
    def launcher(problem, config, sets):
        """The call of a config."""
        launch = registry.find(problem.op, config.kernel).launch
        return lambda index: launch(sets[index], config)


def over(times, base):
    """Each contestant's time over the base's, by paired medians."""
    return {name: finals.ratio(figures, times[base]) for name, figures in times.items()}


@contextlib.contextmanager
def gpu():
    """A bench on the first GPU, its work on a side stream."""
    torch.cuda.set_device(0)
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    with torch.cuda.stream(torch.cuda.Stream()), nvml.open_clocks(f"GPU-{uuid}" if uuid else None) as watch:
        yield Bench(watch)
