"""How long a problem or a ladder will take a GPU, and with which others it shares binaries."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.fleet.messages import Item
from tuner.fleet.queue import Work
from tuner.hardware.device import INTERPRETED_FLOPS_S, Device
from tuner.problem import Problem
from tuner.sweep.agenda import distinct
from tuner.sweep.race import LEAST_TRIALS

_PROBLEM_S = 1.5
"""A race takes about as long for large problems as for small ones (benchmarks/results/race-h200.json)."""
_BETWEEN_RUNGS = 1.5
"""A ladder plays this many problems for each of its rungs: probes and checks are among them."""
_SIZES = ("m", "n", "k")


def work_of(items: Iterable[Item], device: Device) -> list[Work[Item]]:
    """The work that items are on a device, each item once."""
    return [Work(item, cost_s(item, device), compile_class(item)) for item in distinct(items)]


def cost_s(item: Item, device: Device) -> float:
    """About how many seconds one GPU, or the interpreter, takes."""
    if not isinstance(item, Problem):
        return _BETWEEN_RUNGS * sum(cost_s(rung, device) for rung in item.rungs)
    interpreted = LEAST_TRIALS * item.flops / INTERPRETED_FLOPS_S if device.is_interpreter else 0.0
    return _PROBLEM_S + interpreted


def compile_class(item: Item) -> str:
    """What problems that share binaries have in common: everything but their sizes."""
    problem = item if isinstance(item, Problem) else item.family
    return str([value for name, value in problem.fields().items() if name not in _SIZES])
