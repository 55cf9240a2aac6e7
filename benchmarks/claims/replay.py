"""One search replayed on a recorded landscape: the product's own job, with draws of what was recorded for a GPU.

A trial costs what entering a config took on that problem (launch, check, capture) and what its replays take; the finals
are the product's too, and cost their rounds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import statistics
from typing import NamedTuple

from recorded import H200, covering

from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Outcome, State
from tuner.sweep import finals
from tuner.sweep.job import Job
from tuner.sweep.measure import VENDOR
from tuner.sweep.neighbours import fitted, nearest
from tuner.sweep.search_task import list_spaces, make_search_task
from tuner.sweep.supervisor import BATCH
from tuner.sweep.timer import GraphTimer

PROCESS = 0.003
"""By how much a config's time moves between processes, as a standard deviation: two of them together by 0.4%, which is
what paired medians were seen to do (TRITON.md: 0.4 to 0.5%)."""


class Won(NamedTuple):
    """As much of a winner as the search for another problem's looks at."""

    problem: Problem
    config: Config


class Bench:
    """Stands for the GPU's worker: draws times of a landscape, keeps the bill."""

    def __init__(self, landscape, strategy, seed):
        self.land, self.strategy, self.random = landscape, strategy, random.Random(seed)
        self.spent_s, self.best_us = 0.0, math.inf

    def measure(self, batch):
        """Each once, then again what stays within the strategy's factors of the fastest; yields configs' outcomes."""
        samples = {config: [self._draw(config)] for config in batch if config in self.land.us}
        self.best_us = min([self.best_us, *(times[0] for times in samples.values())])
        for factor in self.strategy.drop:
            for config, times in samples.items():
                if min(times) <= factor * self.best_us:
                    times.append(self._draw(config))
        for config in batch:
            times = samples.get(config)
            if times is None:
                yield config, Outcome(State.INVALID, "not in the landscape")
            else:
                self.spent_s += self.land.enter_s + len(times) * self.land.replay_s
                self.best_us = min(self.best_us, *times)
                yield config, Outcome(State.COMPLETE, median_us=statistics.median(times), samples=len(times))

    def finals(self, finalists):
        """Times by digest, as the worker plays finals, torch's library beside them."""
        self.spent_s += (len(finalists) + 1) * self.land.enter_s
        us = {config.digest: self.land.us[config] for config in finalists}
        true_us = {digest: time_us * math.exp(self.random.gauss(0, PROCESS)) for digest, time_us in us.items()}
        true_us[VENDOR] = self.land.best_us

        def fire(names):
            self.spent_s += len(names) * self.land.replay_s
            return [true_us[name] * math.exp(self.random.gauss(0, self.land.scatter)) for name in names]

        return finals.play(
            list(true_us),
            fire,
            seed=0,
            beside=(VENDOR,),
            rounds=self.strategy.rounds or GraphTimer.final_rounds,
            max_rounds=GraphTimer.max_final_rounds,
        )

    def _draw(self, config):
        """One replay's figure."""
        return self.land.us[config] * math.exp(self.random.gauss(0, self.land.scatter))


class Course:
    """What every strategy is given of one problem.

    Attributes:
        land: the landscape.
        field: as `tuner run` makes it, but for a portfolio made of other problems, and without what came after the
            landscape was recorded: kernels, parameters and refinements.
        best_us: the fastest of the configs that a search can find. The landscape's own best may be none of them: its
            kernel stores a tile through fewer buffers since, and the space has a deeper ring in its place.
    """

    def __init__(self, land, others):
        self.land = land
        covered = [config for config, _ in covering(others)]
        listing = list_spaces(land.problem, H200, estimated=True)
        today, kernels = make_search_task(land.problem, H200, listing=listing), {config.kernel for config in land.us}
        inner = {config.get("INNER") for config in land.us}  # of `padded`; None of every other kernel
        specs = {name: spec for name, spec in today.specs.items() if name in kernels}
        self._spaces = {name: spec.space(land.problem, H200) for name, spec in specs.items()}
        first = next(iter(specs.values()))  # by precedence: whose formula came first then
        known = {name for config in land.us for name in config}
        default = first.default_config(land.problem, H200)
        default = Config(default.kernel, **{name: value for name, value in default.pairs if name in known})
        self.field = dataclasses.replace(
            today,
            specs=specs,
            default=self._spaces[first.name].canonicalize(default),
            configs=[c for c in today.configs if c.kernel in kernels and c.get("INNER") in inner and known >= c.keys()],
            portfolio=covered,
            refine=lambda _config: (),
            refinable=False,
        )
        found = {self.field.default, *self.field.configs}
        self.best_us = min(us for config, us in land.us.items() if config in found)

    def job(self, strategy, *, trials=None, seed=0, winners=()):
        """A search, with the winners of problems that were decided before."""
        near = nearest(self.land.problem, winners, H200.sm_count)
        nearby = functools.partial(fitted, near, self._spaces)
        job = Job(dataclasses.replace(self.field, trials=trials, seed=seed, nearby=nearby), strategy)
        job.resume({})
        return job


def play(course, strategy, *, trials=None, seed=0, winners=()):
    """One search of one problem: its winner's time over its space's best, GPU seconds, configs measured, the winner."""
    bench = Bench(course.land, strategy, seed)
    job = course.job(strategy, trials=trials, seed=seed, winners=winners)
    while batch := job.take(BATCH, None)[0]:
        for config, outcome in bench.measure(batch):
            job.finish(config, outcome)
    winner = job.verdict(bench.finals(job.finalists())).config
    return {
        "ratio": bench.land.us[winner] / course.best_us,
        "seconds": bench.spent_s,
        "trials": job.measured,
        "winner": winner,
    }
