"""A search space: axes of parameters, rules that reject configs before anything is compiled."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
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
        early: it looks at nothing that `SearchSpace.expand` or `canonical` changes: a point of the axes that it rejects
            need not be expanded.
        reads: of an early rule, all parameters that it looks at: it is asked once those that are axes are set, and
            what it rejects is not completed. Empty: of whole points.
    """

    name: str
    source: str
    rejects: Callable[[Config, Problem, Device], str | None]
    fatal: bool = False
    early: bool = False
    reads: tuple[str, ...] = ()


def _as_it_is(config: Config, problem: Problem, device: Device) -> tuple[Config]:  # noqa: ARG001
    return (config,)


def _in_no_way(config: Config, problem: Problem, device: Device) -> tuple[()]:  # noqa: ARG001
    return ()


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Every config of one kernel for one problem on one device.

    Attributes:
        kernel: the kernel's name.
        axes: parameter name to its values, in the order configs are enumerated.
        rules: what rejects a config.
        canonical: the representative of all configs that are the same program for this problem.
        expand: from a point of the axes to configs, where a parameter's values follow from the others'.
        options: parameters that a config may have besides; one that lacks them does without.
        refine: configs that differ from one in an option. They are not among `configs`: a search tries those of its
            leaders, so that an option costs a few trials and not as many spaces as it has values.
    """

    kernel: str
    problem: Problem
    device: Device
    axes: Mapping[str, tuple[Value, ...]]
    rules: tuple[Rule, ...] = ()
    canonical: Callable[[Config, Problem, Device], Config] = lambda config, _problem, _device: config
    expand: Callable[[Config, Problem, Device], Iterable[Config]] = _as_it_is
    options: tuple[str, ...] = ()
    refine: Callable[[Config, Problem, Device], Iterable[Config]] = _in_no_way

    def configs(self) -> list[Config]:
        """Every config worth trying, each program once, in canonical order."""
        return sorted(config for config in self.programs() if self.rejection(config) is None)

    def refinements(self, config: Config) -> list[Config]:
        """What a search tries of a config that leads: the same with one option each, as far as no rule rejects it."""
        return [one for one in self.refine(config, self.problem, self.device) if self.rejection(one) is None]

    def tries(self, config: Config) -> bool:
        """Whether a search may come to a config: one of `configs`, or a refinement of one."""
        # Of each axis only the config's own value: a handful of configs stands for the whole space.
        near = self.narrowed(**{name: (value,) for name, value in config.pairs}).configs()
        plain = (one for one in near if set(one.pairs) < set(config.pairs))
        return config in near or any(config in self.refinements(one) for one in plain)

    def best(
        self,
        cost: Callable[[Config], Any],
        *,
        ties: Callable[[Config], Any] = lambda _config: 0,
        among: Mapping[Config, Any] | None = None,
    ) -> Config | None:
        """The config of least cost; None where the space is empty.

        Quicker than `min(configs(), key=cost)`: rules are asked from the cheapest on, until one passes.

        Args:
            cost: anything that can be compared.
            ties: decides between configs of one cost, the least first; then canonical order does.
            among: what to look at, with its cost; where rules reject all of that, or there is none, at all configs.
        """
        priced = among.items() if among else ((config, cost(config)) for config in self.programs())
        ranked = sorted(((one, config) for config, one in priced), key=_first)
        for _, equals in itertools.groupby(ranked, key=_first):
            for config in sorted((config for _, config in equals), key=lambda config: (ties(config), config)):
                if self.rejection(config) is None:
                    return config
        return self.best(cost, ties=ties) if among else None

    def refined(self, config: Config, cost: Callable[[Config], Any]) -> Config:
        """Of a config and what refines it the one of least cost, of equals the config itself."""
        return min((config, *self.refinements(config)), key=cost)

    def points(self) -> list[Config]:
        """Every point of the axes but those that an early rule rejects."""
        # Made axis by axis: what a rule rejects of few parameters is never completed.
        points, settled = [Config(self.kernel)], set[str]()
        waiting = [rule for rule in self.rules if rule.early]
        for name, values in sorted(self.axes.items(), key=lambda axis: len(axis[1]) > 1):
            points = [point.replace(**{name: value}) for point in points for value in values]
            settled.add(name)
            asked = [rule for rule in waiting if self.axes.keys() & (rule.reads or self.axes) <= settled]
            waiting = [rule for rule in waiting if rule not in asked]
            for rule in asked:
                points = [point for point in points if rule.rejects(point, self.problem, self.device) is None]
        return points

    def nearest(self, config: Config) -> Config | None:
        """Of what a search tries here the config most like one of another problem; None where the space is empty.

        Its tile, as far as the axes have it; what follows from a tile (stages, splits, the order of tiles) as this
        problem allows it, and none of the options.
        """
        alike = self.narrowed(**{name: (value,) for name, value in config.pairs})
        return alike.best(lambda one: _unlikeness(one, config))

    def smallest(self) -> Config:
        """Every axis's first value, whatever the rules say: a formula's last resort, where nothing is worth trying."""
        return self.canonicalize(Config(self.kernel, **{name: values[0] for name, values in self.axes.items()}))

    def narrowed(self, **axes: tuple[Value, ...]) -> SearchSpace:
        """The same space, of some axes only those values that are named here; the order is the axes' own.

        Args:
            axes: parameter name to the values that stay; parameters and values that the space lacks are passed over, an
                axis that has none of the values stays whole.
        """
        kept = {
            name: tuple(value for value in values if value in axes.get(name, values)) or values
            for name, values in self.axes.items()
        }
        return dataclasses.replace(self, axes=kept)

    def programs(self) -> Iterable[Config]:
        """Representatives of all programs but those that an early rule rejects."""
        return dict.fromkeys(config for point in self.points() for config in self._expanded(point))

    def _expanded(self, point: Config) -> Iterator[Config]:
        return map(self.canonicalize, self.expand(point, self.problem, self.device))

    def odd_parameters(self, config: Config) -> set[str]:
        """Parameters that a config lacks, or that are neither axes nor options; what `expand` adds, the rules judge."""
        known = self.axes.keys()
        return (known ^ config.keys()) - set(self.options) if self.expand is _as_it_is else known - config.keys()

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


def _unlikeness(one: Config, other: Config) -> float:
    """In steps: a factor of two of a number, any difference of a word or truth value, a parameter that one lacks."""
    steps = 0.0
    for name in one.keys() | other.keys():
        values = one.get(name), other.get(name)
        numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
        if len(numbers) == len(values):
            steps += abs(math.log2(max(1, numbers[0])) - math.log2(max(1, numbers[1])))
        else:
            steps += values[0] != values[1]
    return steps


def _first(pair: tuple[Any, Config]) -> Any:
    return pair[0]
