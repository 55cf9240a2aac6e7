"""Estimates corrected by what was measured: of each kernel a forest of regression trees over a config's traits.

`calibration.json` holds the forests, boosted by benchmarks/calibrate.py on scattered trials of an H200 (16-bit
operands, B stored [N, K]), with their provenance. Trees are oblivious: all nodes of a level ask the same, so that the
leaves of all trees are found by a few array operations. Elsewhere the cost model's estimates stand as they are.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tuner import dtype as dtypes
from tuner.config import Config
from tuner.device import Device
from tuner.kernels import odd_rows, traits
from tuner.problem import Problem

MOST = 0.7
"""Of a correction, in log time: twice as long, or half."""


LEAF_UNIT = 1e-4
"""Of a leaf's part of a correction, as the file has it."""


class Forest(NamedTuple):
    """Of one kernel.

    Attributes:
        traits: what numbers stand for.
        asked: int [trees, levels]: which trait a level asks for.
        thresholds: float64 [trees, levels]: a trait beyond sets the level's bit, the first level's the lowest.
        leaves: float64 [trees * 2**levels]: tree after tree, by the number that the bits make.
        bias: added to the sum of all trees' leaves.
    """

    traits: tuple[str, ...]
    asked: np.ndarray[Any, np.dtype[np.intp]]
    thresholds: np.ndarray[Any, np.dtype[np.float64]]
    leaves: np.ndarray[Any, np.dtype[np.float64]]
    bias: float


@functools.lru_cache(maxsize=1024)
def applies(problem: Problem, device: Device) -> bool:
    """Whether the forests speak of a problem on a device."""
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
    forest = forests()[name_of(config, exchanged=exchanged)]
    return us * math.exp(correction(forest, traits.of_tiles(config, problem, device, us, exchanged=exchanged)))


def of_streams(us: float, config: Config, problem: Problem, device: Device) -> float:
    """The estimate of `gemv`, corrected; see `of_tiles`."""
    if not applies(problem, device):
        return us
    return us * math.exp(correction(forests()[config.kernel], traits.of_streams(config, problem, device, us)))


def name_of(config: Config, *, exchanged: bool) -> str:
    """The name of a config's forest: a kernel that loads in two ways, or that may exchange its operands, has two."""
    if config.kernel == "swap_ab":
        return f"swap_ab by {config['LOADS']}"
    return f"{config.kernel} exchanged" if exchanged and config.kernel == "warp_specialized" else config.kernel


def correction(forest: Forest, values: Mapping[str, float]) -> float:
    """What is added to the logarithm of an estimate.

    Args:
        forest: the kernel's.
        values: of all its traits.
    """
    row = np.array([values[name] for name in forest.traits])
    trees, levels = forest.asked.shape
    numbers = (row[forest.asked] > forest.thresholds) @ (1 << np.arange(levels))
    total = forest.bias + forest.leaves[numbers + (np.arange(trees) << levels)].sum()
    return float(min(max(total, -MOST), MOST))


@functools.cache
def forests() -> Mapping[str, Forest]:
    """Of every kernel that has one."""
    text = (importlib.resources.files("tuner.kernels") / "calibration.json").read_text(encoding="utf-8")
    return {name: _forest(entry) for name, entry in json.loads(text)["kernels"].items()}


def _forest(entry: Mapping[str, Any]) -> Forest:
    asked, thresholds, leaves = zip(*entry["trees"], strict=True)
    return Forest(
        tuple(entry["traits"]),
        np.array(asked, dtype=np.intp),
        np.array(thresholds),
        np.array(leaves).ravel() * LEAF_UNIT,
        entry["bias"],
    )
