"""Estimates corrected by what was measured: a forest of regression trees for each kernel, over a config's features.

`calibration.npz` holds the forests, boosted by benchmarks/fit/calibrate.py on trials of an H200 and an H100 (B stored
[N, K]; 16-bit operands, and fp8 ones with block scales), where they come from, and the fingerprint of the cost
model that they were fitted on: they are not used with another. Trees are oblivious: all nodes of a level ask the same,
and so the leaves of all trees are found by a few array operations. Elsewhere the cost model's estimates stand as they
are.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.cost import features
from tuner.kernels.cost.fingerprint import fingerprint
from tuner.kernels.cost.terms import Terms
from tuner.kernels.space import odd_rows, tile_resources
from tuner.problem import Problem, dtype

_log = logging.getLogger(__name__)

MEASURED_ON = "sm_90"
"""The architecture whose trials the forests were fitted on."""
MOST = 0.7
"""The largest correction, in log time: twice as long, or half."""
MOST_OTHER_ROWS = 256
"""Rows of A up to which the forests were fitted on block scales, and of operands or outputs other than 16-bit ones
up to which the estimates of kernels with models of their own are not beside what is corrected (decision 159)."""
MOST_INT8_ROWS = 16
"""The same of int8: of 17 to 256 rows the forests rank `swap_ab` and `warp_specialized` wrongly (decision 160)."""
LEAF_UNIT = 1e-4
"""The unit of a leaf's part of a correction."""


class Forest(NamedTuple):
    """The forest of one kernel, array by array as the file has them.

    Attributes:
        features: str [features]: what numbers stand for.
        asked: uint8 [trees, levels]: which feature a level tests.
        thresholds: float32 [trees, levels]: a feature beyond sets the level's bit, the first level's the lowest.
        leaves: int16 [trees, 2**levels], in `LEAF_UNIT`: by the number that the bits make, of 8 levels at most.
        bias: float64, added to the sum of all trees' leaves.
    """

    features: np.ndarray[Any, np.dtype[np.str_]]
    asked: np.ndarray[Any, np.dtype[np.uint8]]
    thresholds: np.ndarray[Any, np.dtype[np.float32]]
    leaves: np.ndarray[Any, np.dtype[np.int16]]
    bias: np.ndarray[Any, np.dtype[np.float64]]


def is_alike(problem: Problem, device: Device, *, exchanged: bool = False) -> bool:
    """Whether the forests rank problems like this one well on a device like this one.

    They were fitted on block scales and on 16-bit operands and outputs. Features count in bytes and times, so
    forests of the latter also rank other operands that wgmma takes as they are stored, of few rows (decisions 159 and
    160).

    Args:
        problem: of any operands.
        device: where.
        exchanged: whether the problem is given as a kernel sees it that exchanges the operands.
    """
    if not _is_of_the_trials(problem, device):
        return False
    most = MOST_INT8_ROWS if problem.a_dtype == "int8" else MOST_OTHER_ROWS
    few = (problem.n if exchanged else problem.m) <= most
    if problem.scaling == "block":
        return problem.layout == "nt" and few
    size, other, stored = (dtype.ITEMSIZE[name] for name in (problem.a_dtype, problem.b_dtype, problem.out_dtype))
    known, likely = size == stored == 2, few and tile_resources.suits_wgmma(problem) and problem.precision != "tf32x3"
    return size == other and (known or likely)


@functools.lru_cache(maxsize=1024)
def applies(problem: Problem, device: Device, *, exchanged: bool = False) -> bool:
    """Whether the forests speak of a problem on a device; see `is_alike`."""
    return is_alike(problem, device, exchanged=exchanged) and fits()


def applies_to_streams(problem: Problem, device: Device) -> bool:
    """Whether a forest says how the estimates of `gemv` err: with B stored [N, K], but for fp8, which it converts."""
    if problem.layout[1] != "t" or dtype.is_fp8(problem.a_dtype):
        return False
    return applies(problem, device) or (is_plain(problem, device) and fits())


def is_plain(problem: Problem, device: Device) -> bool:
    """Whether the forest of `gemv` ranks a problem of full float32 well; no other forest saw any."""
    plain = problem.layout == "nt" and not tile_resources.uses_tensor_cores(problem)
    return plain and _is_of_the_trials(problem, device)


def _is_of_the_trials(problem: Problem, device: Device) -> bool:
    """Whether trials are of such a device, op and rows, whatever the operands."""
    return device.arch == MEASURED_ON and problem.op == "matmul" and not any(odd_rows.odd(problem))


@functools.cache
def fits() -> bool:
    """Whether the forests were fitted on the features that this cost model gives; says once where they were not."""
    with _arrays() as arrays:
        fitted_on = json.loads(str(arrays["about"])).get("model")
    if fitted_on == fingerprint():
        return True
    _log.warning(
        "the calibration was fitted on another cost model (%s, this is %s): estimates stand as they are; "
        "benchmarks/fit/calibrate.py --write fits it anew",
        fitted_on,
        fingerprint(),
    )
    return False


def of_tiles(
    estimated: Sequence[tuple[Terms, Config]], problem: Problem, device: Device, *, exchanged: bool = False
) -> list[float]:
    """The estimates of configs of kernels of tiles, corrected where the forests speak of the problem.

    Args:
        estimated: the cost model's terms, each with its config; many at once take a fraction of the time.
        problem: as the device sees it, and the configs likewise.
        device: where.
        exchanged: whether the device computes the transposed output.
    """
    if not applies(problem, device, exchanged=exchanged):
        return [terms.us for terms, _ in estimated]
    return _corrected(
        (
            terms.us,
            name_of(config, exchanged=exchanged, scaled=problem.scaling == "block"),
            features.of_tiles(terms, config, problem, device, exchanged=exchanged),
        )
        for terms, config in estimated
    )


def of_streams(estimated: Sequence[tuple[float, Config]], problem: Problem, device: Device) -> list[float]:
    """The estimates of `gemv`, corrected; see `of_tiles`."""
    if not applies_to_streams(problem, device):
        return [us for us, _ in estimated]
    return _corrected((us, config.kernel, features.of_streams(config, problem, device, us)) for us, config in estimated)


def _corrected(estimated: Iterable[tuple[float, str, Mapping[str, float]]]) -> list[float]:
    """The estimates as the forests correct them, from estimates, names of forests and features."""
    found, rows = list[float](), defaultdict[str, list[tuple[int, Mapping[str, float]]]](list)
    for number, (us, name, values) in enumerate(estimated):
        found.append(us)
        rows[name].append((number, values))
    for name, listed in rows.items():
        found_of = corrections(forest_of(name), [values for _, values in listed])
        for (number, _), one in zip(listed, found_of, strict=True):
            found[number] *= math.exp(one)
    return found


def name_of(config: Config, *, exchanged: bool, scaled: bool = False) -> str:
    """The name of a config's forest.

    A kernel that loads in two ways has two, `warp_specialized` others for exchanged operands and for block scales.
    """
    if config.kernel in ("swap_ab", "split_k", "block_scaled"):
        return f"{config.kernel} by {config['LOADS']}"
    if config.kernel != "warp_specialized":
        return config.kernel
    return f"warp_specialized{' exchanged' if exchanged else ''}{' of blocks' if scaled else ''}"


def corrections(forest: Forest, several: Sequence[Mapping[str, float]]) -> list[float]:
    """What is added to the logarithms of estimates.

    Args:
        forest: the kernel's.
        several: of each estimate the values of all the forest's features.
    """
    row_of = itemgetter(*forest.features.tolist())
    # A feature's values side by side, and bits in bytes: row by row and in whole words it took three times as long.
    columns = np.array([row_of(values) for values in several], dtype=np.float32).T.copy()
    trees, levels = forest.asked.shape
    numbers = np.zeros((trees, len(several)), dtype=np.uint8)
    for level in range(levels):
        beyond = columns[forest.asked[:, level]] > forest.thresholds[:, level, None]
        numbers |= beyond.view(np.uint8) << np.uint8(level)
    first = (np.arange(trees) << levels)[:, None]
    totals = forest.bias + LEAF_UNIT * forest.leaves.ravel().take(first + numbers).sum(axis=0)
    return [float(one) for one in totals.clip(-MOST, MOST)]


@functools.cache
def forest_of(name: str) -> Forest:
    """The forest of that name."""
    with _arrays() as arrays:
        return Forest(*(arrays[f"{name}/{field}"] for field in Forest._fields))


@contextmanager
def _arrays() -> Iterator[Mapping[str, Any]]:
    path = importlib.resources.files("tuner.kernels.cost") / "calibration.npz"
    with path.open("rb") as file, np.load(file) as arrays:
        yield arrays
