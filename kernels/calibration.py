"""Estimates corrected by what was measured: of each kernel a sum of weighed traits, in log time.

`calibration.json` holds the weights, fitted by benchmarks/calibrate.py on scattered trials of an H200 (16-bit operands,
B stored [N, K]) with its provenance. A term is a trait or the product of two, each scaled by what it was in the fit and
held within what it was there: beyond, nobody measured. Elsewhere the cost model's estimates stand as they are.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import mul
from typing import NamedTuple

from tuner import dtype as dtypes
from tuner.config import Config
from tuner.device import Device
from tuner.kernels import odd_rows, traits
from tuner.problem import Problem

MOST = 0.7
"""Of a correction, in log time: twice as long, or half."""


class Scale(NamedTuple):
    """Of a trait in the fit: its mean, its standard deviation, its least and greatest value."""

    mean: float
    deviation: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Weights:
    """Of one kernel.

    Attributes:
        bias: added to every correction.
        scales: by trait.
        terms: two traits, the second "" where a term is a trait alone; what their product weighs.
    """

    bias: float
    scales: Mapping[str, Scale]
    terms: tuple[tuple[str, str, float], ...]
    _columns: tuple[tuple[str, ...], tuple[str, ...], tuple[float, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ones, others, weighs = zip(*self.terms, ("", "", self.bias), strict=True)
        object.__setattr__(self, "_columns", (ones, others, weighs))

    def total(self, scaled: Mapping[str, float]) -> float:
        """The bias and all terms, of traits that are scaled; that of "" is 1."""
        ones, others, weighs = self._columns
        # A formula asks hundreds of times: products without a loop of Python's own.
        first, second = map(scaled.__getitem__, ones), map(scaled.__getitem__, others)
        return sum(map(mul, map(mul, weighs, first), second))


def applies(problem: Problem, device: Device) -> bool:
    """Whether the weights speak of a problem on a device."""
    sizes = {dtypes.ITEMSIZE[name] for name in (problem.a_dtype, problem.b_dtype, problem.out_dtype)}
    return device.arch == "sm_90" and sizes == {2} and problem.op == "matmul" and not any(odd_rows.odd(problem))


def of_tiles(us: float, config: Config, problem: Problem, device: Device, *, exchanged: bool = False) -> float:
    """A kernel of tiles' estimate, corrected.

    Args:
        us: the cost model's estimate.
        config, problem: as the device sees them.
        device: where.
        exchanged: whether the device computes the transposed output.
    """
    if not applies(problem, device):
        return us
    found = weights()[name_of(config, exchanged=exchanged)]
    return us * math.exp(correction(found, traits.of_tiles(config, problem, device, us, exchanged=exchanged)))


def of_streams(us: float, config: Config, problem: Problem, device: Device) -> float:
    """The estimate of `gemv`, corrected; see `of_tiles`."""
    if not applies(problem, device):
        return us
    return us * math.exp(correction(weights()[config.kernel], traits.of_streams(config, problem, device, us)))


def name_of(config: Config, *, exchanged: bool) -> str:
    """The name of a config's weights: a kernel that loads in two ways, or that may exchange its operands, has two."""
    if config.kernel == "swap_ab":
        return f"swap_ab by {config['LOADS']}"
    return f"{config.kernel} exchanged" if exchanged and config.kernel == "warp_specialized" else config.kernel


def correction(found: Weights, values: Mapping[str, float]) -> float:
    """What is added to the logarithm of an estimate."""
    scaled = {"": 1.0}
    for name, (mean, deviation, least, most) in found.scales.items():
        value = values[name]
        scaled[name] = ((least if value < least else most if value > most else value) - mean) / deviation
    return min(max(found.total(scaled), -MOST), MOST)


@functools.cache
def weights() -> Mapping[str, Weights]:
    """Of every kernel that has them."""
    text = (importlib.resources.files("tuner.kernels") / "calibration.json").read_text(encoding="utf-8")
    return {
        name: Weights(
            entry["bias"],
            {trait: Scale(*scale) for trait, scale in entry["traits"].items()},
            tuple((one, other, weight) for one, other, weight in entry["terms"]),
        )
        for name, entry in json.loads(text)["kernels"].items()
    }
