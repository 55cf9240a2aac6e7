"""How long a config of `block_scaled_warp_specialized` takes with more rows of A than the calibration has trials of."""

from __future__ import annotations

from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import SCALE_GROUP
from tuner.kernels.cost import calibration
from tuner.kernels.cost.norm import norm
from tuner.kernels.cost.terms import Terms
from tuner.problem import Problem

_HALF = 64
"""The smaller of a tile's two sizes of rows, and of columns."""
_NARROW = 3072
"""Columns of B up to which tiles of the same rows of A may run side by side, on 132 multiprocessors (docs/decisions.md,
183)."""
_OVERLAP = 4
"""The p of the p-norm of multiply-adds and device memory, which hide each other in part."""


class Constants(NamedTuple):
    """What `modelled_us` is fitted by (benchmarks/fit/block_scaled.py).

    Attributes:
        step_128x128, step_128x64, step_64x128, step_64x64: cycles of a tile's step along K, by its rows and columns.
        crowded: how many times as long besides if every multiprocessor has a tile; with fewer, by the square of their
            share. All of them ask the L2 then.
        stored: cycles of a tile for each of its sums, besides the steps.
        apart: how many times as long besides where those that run side by side do not load the larger operand together.
        start_us: first loads and last stores.
    """

    step_128x128: float
    step_128x64: float
    step_64x128: float
    step_64x64: float
    crowded: float
    stored: float
    apart: float
    start_us: float

    def step(self, rows: int, columns: int) -> float:
        """Cycles of a step of a tile with so many rows and columns."""
        of_64, of_128 = (self.step_64x64, self.step_64x128), (self.step_128x64, self.step_128x128)
        return (of_128 if rows > _HALF else of_64)[columns > _HALF]


CONSTANTS = Constants(
    step_128x128=515.0,
    step_128x64=339.0,
    step_64x128=314.0,
    step_64x64=223.0,
    crowded=0.345,
    stored=0.083,
    apart=0.023,
    start_us=2.04,
)


def knows(problem: Problem) -> bool:
    """Whether it estimates a problem with block scales: if M is larger than any that the calibration was fitted to."""
    return problem.m > calibration.MOST_OTHER_ROWS


def modelled_us(config: Config, terms: Terms, problem: Problem, device: Device, by: Constants = CONSTANTS) -> float:
    """How long a config takes, microseconds; `terms` are the cost model's, of which it takes those of device memory."""
    rows, columns = config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N")
    waves, rest = divmod(-(-problem.m // rows) * -(-problem.n // columns), device.sm_count)
    tiles = waves * (1 + by.crowded) + (rest > 0) * (1 + by.crowded * (rest / device.sm_count) ** 2)
    order = 1.0 if loads_together(config, problem) else 1 + by.apart
    steps = -(-problem.k // SCALE_GROUP) * by.step(rows, columns) * tiles * order
    stored = (waves + (rest > 0)) * rows * columns * by.stored
    return by.start_us + norm(_OVERLAP, (steps + stored) / device.sustained_mhz, terms.memory + terms.again)


def loads_together(config: Config, problem: Problem) -> bool:
    """Whether tiles that run side by side share the operand of which all tiles load more: rows of A, or else of B.

    A row of tiles is that of A's; where B has more columns than `_NARROW`, too few such rows run at once.
    """
    of_a, of_b = config.integer("BLOCK_SIZE_M") * problem.m, config.integer("BLOCK_SIZE_N") * problem.n
    return (config.integer("GROUP_SIZE_M") == 1) == (of_a > of_b and problem.n <= _NARROW)
