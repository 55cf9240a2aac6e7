"""A search space: axes of parameters, rules that reject configs before anything is compiled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tuner.config import Config, Value
from tuner.device import Device
from tuner.problem import Problem


@dataclass(frozen=True, slots=True)
class Rule:
    """Why a config cannot work, or is another config in disguise.

    Attributes:
        name: what the rule is called in messages.
        source: where the rule comes from: a guide, a paper, a measurement.
        rejects: the reason, in words, or None.
        fatal: the config cannot run at all (too much shared memory); else it is only not worth trying. A lookup
            refuses fatal ones, a search refuses both.
    """

    name: str
    source: str
    rejects: Callable[[Config, Problem, Device], str | None]
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Every config of one kernel for one problem on one device.

    Attributes:
        kernel: the kernel's name.
        axes: parameter name to its values, in the order configs are enumerated.
        rules: what rejects a config.
        canonical: the representative of all configs that are the same program for this problem.
        expand: from a point of the axes to configs, where a parameter's values follow from the others'.
    """

    kernel: str
    problem: Problem
    device: Device
    axes: Mapping[str, tuple[Value, ...]]
    rules: tuple[Rule, ...] = ()
    canonical: Callable[[Config, Problem, Device], Config] = lambda config, _problem, _device: config
    expand: Callable[[Config, Problem, Device], Iterable[Config]] = lambda config, _problem, _device: (config,)

    def configs(self) -> list[Config]:
        """Every config worth trying, each program once, in canonical order."""
        found: dict[Config, None] = {}
        for values in itertools.product(*self.axes.values()):
            point = Config(self.kernel, **dict(zip(self.axes, values, strict=True)))
            for expanded in self.expand(point, self.problem, self.device):
                config = self.canonicalize(expanded)
                if config not in found and self.rejection(config) is None:
                    found[config] = None
        return sorted(found)

    def canonicalize(self, config: Config) -> Config:
        """The representative of `config`'s program for this problem."""
        return self.canonical(config, self.problem, self.device)

    def rejection(self, config: Config, *, fatal_only: bool = False) -> str | None:
        """Why a config is not tried ("rule: reason"), or None when it is.

        Args:
            config: any config of this kernel.
            fatal_only: ask only whether it cannot run at all.
        """
        for rule in self.rules:
            if fatal_only and not rule.fatal:
                continue
            reason = rule.rejects(config, self.problem, self.device)
            if reason is not None:
                return f"{rule.name}: {reason}"
        return None
