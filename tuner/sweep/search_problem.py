"""The field of a problem's search: every config that may be tried, and what is known beforehand of some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.problem import Problem
from tuner.sweep import portfolio
from tuner.sweep.neighbours import fitted


@dataclass(frozen=True, slots=True)
class Field:
    """What a search may choose from.

    Attributes:
        problem, device: what is tuned, and where.
        specs: the kernels that serve it, by name.
        configs: every config of their search spaces, in canonical order, then the suggested ones.
        default: the config of a problem nobody tuned; always tried.
        trials: configs to try at most, None for no limit.
        seed: of random choices.
        nearby: configs like the winners of problems like this one, nearest first (`SearchSpace.nearest`); asked again
            whenever a search wants them, for other problems may have been decided meanwhile.
        portfolio: see `tuner.sweep.portfolio`.
        suggested: configs that others chose for this problem (`tuner import`); nothing is known of them.
        refine: what to try of a config that leads, see `SearchSpace.refine`; nothing of one that is refined already.
        refinable: whether any config may be refined.
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

    @property
    def budget(self) -> int:
        """How many configs may be tried."""
        return len(self.configs) + 1 if self.trials is None else self.trials


def survey(
    problem: Problem,
    device: Device,
    *,
    trials: int | None = None,
    seed: int = 0,
    nearby: Callable[[], Iterable[Config]] = tuple,
    suggested: Sequence[Config] = (),
) -> Field:
    """List what may be tried of a problem; takes tenths of a second.

    Args:
        problem, device: what is tuned, and where.
        trials, seed: see `Field`.
        nearby: winners' configs, of problems like this one; as they were tuned there.
        suggested: configs of anybody; those of kernels that do not serve the problem, or that cannot run, are left out.

    Raises:
        KernelError: no kernel serves the problem on this device, or it cannot be measured.
    """
    specs = {spec.name: spec for spec in registry.serving(problem, device)}
    for spec in specs.values():
        if (reason := spec.unmeasurable(problem)) is not None:
            raise KernelError(reason)
    spaces = {name: spec.space(problem, device) for name, spec in specs.items()}
    listed = [config for space in spaces.values() for config in space.configs()]
    runnable = _runnable(suggested, spaces)
    default = registry.default_config(problem, device)
    default = spaces[default.kernel].canonicalize(default)
    spaced = set(listed)
    listed += [config for config in runnable if config not in spaced]
    everything = {default, *listed}

    def refine(config: Config) -> Sequence[Config]:
        # What is in no space is a refinement itself.
        return spaces[config.kernel].refinements(config) if config in everything else ()

    return Field(
        problem,
        device,
        specs,
        listed,
        default,
        trials=trials,
        seed=seed,
        nearby=lambda: fitted(nearby(), spaces),
        portfolio=portfolio.configs(device.arch),
        suggested=runnable,
        refine=refine,
        refinable=not device.is_interpreter and any(space.options for space in spaces.values()),
    )


def _runnable(suggested: Sequence[Config], spaces: Mapping[str, SearchSpace]) -> list[Config]:
    """Their canonical forms, each once. No axis need hold their values; no rule may say that they cannot run."""
    found: dict[Config, None] = {}
    for config in suggested:
        space = spaces.get(config.kernel)
        if space is None or space.rejection(config, fatal_only=True) is not None:
            continue
        found[space.canonicalize(config)] = None
    return list(found)
