"""A search task: every config that may be tried for a problem, and what is known about some of them beforehand."""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.problem import Problem
from tuner.sweep.neighbours import fitted


@dataclass(frozen=True, slots=True)
class SearchTask:
    """What a search chooses from.

    Attributes:
        problem, device: what is tuned, and where.
        specs: the kernels that serve the problem, by name.
        configs: every config of their search spaces in canonical order, then the suggested ones.
        default: the config used where nobody tuned the problem; a search always tries it.
        trials: the most configs to try; None for no limit.
        seed: seeds random choices.
        nearby: returns configs that resemble the winners of similar problems, nearest first. A search calls it again
            whenever it wants them, because other problems may have been decided meanwhile.
        portfolio: see `portfolio_of`.
        suggested: configs that others chose for this problem (`tuner import`); nothing is known about their speed.
        refine: the refinements to try of a leading config (`SearchSpace.refine`); a refinement has none itself.
        refinable: whether any config has refinements.
        errors: returns by config what the cost model was wrong by for the nearest rung of the same ladder; empty where
            none was measured. See `tuner.sweep.neighbours.errors_nearby`.
        estimates: log microseconds by the kernels' models, of the configs for which they are known already.
    """

    problem: Problem
    device: Device
    specs: Mapping[str, KernelSpec]
    configs: Sequence[Config]
    default: Config
    trials: int | None = None
    seed: int = 0
    nearby: Callable[[], Iterable[Config]] = tuple
    portfolio: Sequence[Config] = ()
    suggested: Sequence[Config] = ()
    refine: Callable[[Config], Sequence[Config]] = lambda _config: ()
    refinable: bool = False
    errors: Callable[[], Mapping[Config, tuple[float, float]]] = dict
    estimates: Mapping[Config, float] = field(default_factory=dict)

    def estimate(self, config: Config) -> float:
        """Return log microseconds by the kernel's model; 0 without one, so that only measurements rank its configs."""
        known = self.estimates.get(config)
        return _estimate(self.specs[config.kernel], config, self.problem, self.device) if known is None else known

    @property
    def budget(self) -> int:
        """How many configs may be tried."""
        return len(self.configs) + 1 if self.trials is None else self.trials


@dataclass(frozen=True, slots=True)
class Listing:
    """What the search spaces of a problem hold.

    Attributes:
        configs: every config in canonical order.
        default: see `SearchTask`.
        estimates: see `SearchTask.estimate`, of each config in order; empty where nobody asked for them.
    """

    configs: Sequence[Config]
    default: Config
    estimates: Sequence[float] = ()


def list_spaces(problem: Problem, device: Device, *, estimated: bool = False) -> Listing:
    """List a problem's search spaces. This takes tenths of a second, and may run in any process that has its kernels.

    Args:
        problem, device: what is tuned, and where.
        estimated: whether to have every config estimated as well.

    Raises:
        KernelError: no kernel serves the problem on this device, or the problem cannot be measured.
    """
    specs = registry.serving(problem, device, strict=True)
    for spec in specs:
        if (reason := registry.ask(spec, "unmeasurable", problem)) is not None:
            raise KernelError(reason)
    listed = [(spec, registry.ask(spec, "space", problem, device).configs()) for spec in specs]
    return Listing(
        [config for _, configs in listed for config in configs],
        registry.default_config(problem, device, strict=True),
        [us for spec, configs in listed for us in _estimates(spec, configs, problem, device)] if estimated else (),
    )


def make_search_task(
    problem: Problem,
    device: Device,
    *,
    trials: int | None = None,
    seed: int = 0,
    nearby: Callable[[], Iterable[Config]] = tuple,
    suggested: Sequence[Config] = (),
    errors: Callable[[], Mapping[Config, tuple[float, float]]] = dict,
    listing: Listing | None = None,
) -> SearchTask:
    """List what may be tried for a problem; the arguments are those of `SearchTask`.

    Suggested configs whose kernel does not serve the problem, or that cannot run, are left out. `listing` is what
    `list_spaces` found, where it was called before.

    Raises:
        KernelError: see `list_spaces`.
    """
    listing = listing or list_spaces(problem, device)
    specs = {spec.name: spec for spec in registry.serving(problem, device, strict=True)}
    spaces = {name: registry.ask(spec, "space", problem, device) for name, spec in specs.items()}
    runnable = _runnable(suggested, spaces)
    default = spaces[listing.default.kernel].canonicalize(listing.default)
    in_a_space = set(listing.configs)
    listed = [*listing.configs, *(config for config in runnable if config not in in_a_space)]
    unrefined = {default, *listed}

    def refine(config: Config) -> Sequence[Config]:
        # A config that is not listed is a refinement itself.
        return spaces[config.kernel].refinements(config) if config in unrefined else ()

    return SearchTask(
        problem,
        device,
        specs,
        listed,
        default,
        trials=trials,
        seed=seed,
        nearby=lambda: fitted(nearby(), spaces),
        portfolio=portfolio_of(device.arch),
        suggested=runnable,
        errors=errors,
        refine=refine,
        refinable=not device.is_interpreter and any(space.refines for space in spaces.values()),
        estimates=dict(zip(listing.configs, listing.estimates, strict=False)),
    )


def _estimate(spec: KernelSpec, config: Config, problem: Problem, device: Device) -> float:
    predicted = None if spec.estimate_us is None else registry.ask(spec, "estimate_us", config, problem, device)
    return 0.0 if predicted is None else _logarithm(predicted)


def _estimates(spec: KernelSpec, configs: Sequence[Config], problem: Problem, device: Device) -> list[float]:
    """What `_estimate` says of each config."""
    if spec.estimates_us is None:
        return [_estimate(spec, config, problem, device) for config in configs]
    estimates = registry.ask(spec, "estimates_us", configs, problem, device)
    if lacking := [config for config in configs if not isinstance(estimates.get(config), (int, float))]:
        raise spec.broken("estimates_us", f"returned {estimates.get(lacking[0])!r:.60} for {lacking[0]}")
    return [_logarithm(estimates[config]) for config in configs]


def _logarithm(us: float) -> float:
    return math.log(max(us, 1e-3))


@functools.cache
def portfolio_of(arch: str) -> tuple[Config, ...]:
    """Return an architecture's portfolio: a few configs that together come close to the best on recorded problems.

    `portfolio.json` was made from recorded measurements and names its sources. The config that covers most problems
    comes first. An architecture without recordings has no portfolio.
    """
    document = json.loads((importlib.resources.files("tuner.sweep") / "portfolio.json").read_text(encoding="utf-8"))
    listed = document["architectures"].get(arch, [])
    return tuple(Config(entry["kernel"], **entry["parameters"]) for entry in listed)


def _runnable(suggested: Sequence[Config], spaces: Mapping[str, SearchSpace]) -> list[Config]:
    """Return the canonical forms of configs that no rule calls fatal; their values need not be on any axis."""
    found: dict[Config, None] = {}
    for config in suggested:
        space = spaces.get(config.kernel)
        if space is None or space.rejection(config, fatal_only=True) is not None:
            continue
        found[space.canonicalize(config)] = None
    return list(found)
