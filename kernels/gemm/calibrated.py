"""Calibrated estimates of kernels that compute a problem as it is given, and the configs that a formula looks at."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace, Ties
from tuner.kernels.cost import calibration
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.model import Candidates
from tuner.kernels.cost.terms import Terms
from tuner.kernels.cost.tile import Loop, Sides, tile_of
from tuner.problem import Problem


def terms(config: Config, problem: Problem, device: Device) -> Terms:
    """The cost model's terms."""
    return cost.terms(config, problem, device, _loop(config))


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate, calibrated."""
    return estimates_us((config,), problem, device)[config]


def estimates_us(configs: Iterable[Config], problem: Problem, device: Device) -> dict[Config, float]:
    """The same of many configs."""
    return corrected({config: terms(config, problem, device) for config in configs}, problem, device)


def corrected(models: Mapping[Config, Terms], problem: Problem, device: Device) -> dict[Config, float]:
    """The estimates, corrected by the calibration."""
    estimated = [(one, config) for config, one in models.items()]
    return dict(zip(models, calibration.of_tiles(estimated, problem, device), strict=True))


def best(
    tried: SearchSpace,
    splits_of: Callable[[Config], Sequence[int]],
    variants: Callable[[Config, int], Iterable[Mapping[str, Value]]],
    ties: Ties,
) -> Config:
    """The config of least estimate of those that the cost model puts near the least.

    It is refined by its options where the calibration speaks.

    Args:
        tried: the space.
        splits_of: every SPLIT_K of a point of its axes.
        variants: of a point and a SPLIT_K, what expanding the point changes.
        ties: orders configs of equal estimates, the least first.
    """
    problem, device = tried.problem, tried.device

    def tiles() -> Iterator[Candidates]:
        for point in tried.points():
            tile = tile_of(Sides.of(point), _loop(point), problem, device)
            yield Candidates(point, tile, splits_of(point), functools.partial(variants, point))

    near = {tried.canonicalize(config): one for config, one in cost.near_least(tiles()).items()}
    estimate = functools.partial(estimate_us, problem=problem, device=device)
    found = tried.best(estimate, ties=ties, among=corrected(near, problem, device))
    if found is None:
        return tried.smallest()
    return tried.refined(found, estimate) if calibration.applies(problem, device) else found


def _loop(config: Config) -> Loop:
    return Loop(by_tma=config.get("LOADS", "tma") == "tma")
