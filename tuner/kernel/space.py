"""A search space: axes of parameters, and rules that reject configs before anything is compiled."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.errors import BrokenKernelError, KernelError, in_short
from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.problem import Problem

Ties = Callable[[Config], Any]
"""A sort key of configs of equal costs, the best first."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Says why a config cannot work, or is not worth trying.

    Attributes:
        name: the rule's name in messages.
        source: where the rule comes from: a guide, a paper, a measurement.
        rejects: returns the reason in words, or None.
        fatal: whether a rejected config cannot run at all (too much shared memory), rather than is not worth trying.
            Lookups refuse only the first kind, searches both.
        early: whether the rule reads nothing that `SearchSpace.expand` or `canonical` changes, so that a rejected point
            of the axes need not be expanded.
        reads: for an early rule, all parameters that it reads. It is checked as soon as those of them that are axes are
            set, and a rejected point is not completed. Empty: it is checked for complete points.
    """

    name: str
    source: str
    rejects: Callable[[Config, Problem, Device], str | None]
    fatal: bool = False
    early: bool = False
    reads: tuple[str, ...] = ()


def _unchanged(config: Config, problem: Problem, device: Device) -> tuple[Config]:  # noqa: ARG001
    return (config,)


def _nothing(config: Config, problem: Problem, device: Device) -> tuple[Config, ...]:  # noqa: ARG001
    return ()


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Every config of one kernel for one problem on one device.

    If one of its functions raises anything but a KernelError, or returns a wrong type, the space raises
    `tuner.errors.BrokenKernelError`, which names the function and the kernel.

    Attributes:
        kernel: the kernel's name.
        problem, device: what is computed, and where.
        axes: the values of each parameter, in the order in which configs are enumerated.
        rules: what rejects a config.
        canonical: returns the representative of all configs that are the same program for this problem.
        expand: returns configs for a point of the axes, if some parameters follow from others.
        options: parameters that a config may have in addition to the axes.
        refine: returns variants of a config that a search tries for its leaders. Those that differ in an option are not
            in `configs`, so an option costs a few trials instead of multiplying the space.
    """

    kernel: str
    problem: Problem
    device: Device
    axes: Mapping[str, tuple[Value, ...]]
    rules: tuple[Rule, ...] = ()
    canonical: Callable[[Config, Problem, Device], Config] = lambda config, _problem, _device: config
    expand: Callable[[Config, Problem, Device], Iterable[Config]] = _unchanged
    options: tuple[str, ...] = ()
    refine: Callable[[Config, Problem, Device], Iterable[Config]] = _nothing

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if isinstance(values, str) or not isinstance(values, Collection):
                raise self._broken("space", f"gives {name} as {values!r:.60}: expected its values, ({values!r:.60},)")
            if not values:
                raise self._broken("space", f"gives {name} no value: expected at least one")

    def _broken(self, what: str, found: str) -> BrokenKernelError:
        return BrokenKernelError.of(what, f"{self.problem.op}/{self.kernel}", found)

    def configs(self) -> list[Config]:
        """Return every config worth trying, each program once, in canonical order."""
        programs = self.programs()
        if (other := next((config for config in programs if config.kernel != self.kernel), None)) is not None:
            raise self._broken("space", f"has a config of another kernel, {other}")
        return sorted(config for config in programs if self.rejection(config) is None)

    @property
    def refines(self) -> bool:
        """Whether any config may have refinements."""
        return self.refine is not _nothing

    def refinements(self, config: Config) -> list[Config]:
        """Return what a search tries of a leading config, as far as no rule rejects it."""
        try:
            refined = list(self.refine(config, self.problem, self.device))
        except (KernelError, MemoryError):
            raise
        except Exception as e:
            raise self._broken("refine", f"failed for {config}: {in_short(e)}") from e
        return [one for one in refined if self.rejection(one) is None]

    def tries(self, config: Config) -> bool:
        """Return whether a search may try a config: it is one of `configs`, or a refinement of one."""
        on_axes = config.keys() == self.axes.keys() and all(config[name] in self.axes[name] for name in config)
        if on_axes and self.rejection(config) is not None:
            return False
        if on_axes and self.expand is _unchanged and self.canonicalize(config) == config:
            return True
        # Each axis is narrowed to the config's own value, so that a handful of configs stands for the whole space.
        near = self.narrowed(**{name: (value,) for name, value in config.pairs}).programs()
        if config in near:
            return self.rejection(config) is None
        pairs, options = set(config.pairs), set(self.options)
        plain = (one for one in near if {pair for pair in one.pairs if pair[0] not in options} <= pairs)
        return any(config in self.refinements(one) for one in plain if self.rejection(one) is None)

    def best(
        self,
        cost: Callable[[Config], Any],
        *,
        ties: Ties = lambda _config: 0,
        among: Mapping[Config, Any] | None = None,
    ) -> Config | None:
        """Return the config of least cost; None where the space is empty.

        This is quicker than `min(configs(), key=cost)`: the rules are asked about the cheapest configs first, until one
        passes.

        Args:
            cost: returns anything that can be compared.
            ties: orders configs of equal cost, the least first; then canonical order decides.
            among: configs to choose from, with their costs. Where it is empty or the rules reject all of it, every
                config is considered.
        """
        priced = among.items() if among else ((config, cost(config)) for config in self.programs())
        ranked = sorted(((one, config) for config, one in priced), key=_first)
        for _, equals in itertools.groupby(ranked, key=_first):
            for config in sorted((config for _, config in equals), key=lambda config: (ties(config), config)):
                if self.rejection(config) is None:
                    return config
        return self.best(cost, ties=ties) if among else None

    def refined(self, config: Config, cost: Callable[[Config], Any]) -> Config:
        """Return the config or the refinement of it that costs least; among equals, the config itself."""
        return min((config, *self.refinements(config)), key=cost)

    def points(self) -> list[Config]:
        """Return every point of the axes that no early rule rejects."""
        # Points are built axis by axis, so that what a rule rejects by a few parameters is never completed.
        points, settled = [Config(self.kernel)], set[str]()
        waiting = [rule for rule in self.rules if rule.early]
        for name, values in sorted(self.axes.items(), key=lambda axis: len(axis[1]) > 1):
            points = [point.replace(**{name: value}) for point in points for value in values]
            settled.add(name)
            ready = [rule for rule in waiting if self.axes.keys() & (rule.reads or self.axes) <= settled]
            waiting = [rule for rule in waiting if rule not in ready]
            for rule in ready:
                points = [point for point in points if self._reason(rule, point) is None]
        return points

    def nearest(self, config: Config) -> Config | None:
        """Return the config of this space that resembles another problem's most; None where the space is empty.

        It keeps the tile as far as the axes have it. What follows from a tile (stages, splits, the order of tiles) is
        chosen as this problem allows, and options are left out.
        """
        alike = self.narrowed(**{name: (value,) for name, value in config.pairs})
        return alike.best(lambda one: _dissimilarity(one, config))

    def smallest(self) -> Config:
        """Return the config of every axis's first value, whatever the rules say: a formula's last resort."""
        return self.canonicalize(Config(self.kernel, **{name: values[0] for name, values in self.axes.items()}))

    def narrowed(self, **axes: tuple[Value, ...]) -> SearchSpace:
        """Return this space with some axes narrowed to the given values, in the axes' own order.

        Args:
            axes: the values that stay, by parameter. Parameters and values that the space lacks are ignored; an axis
                that has none of the values keeps all of its own.
        """
        kept = {
            name: tuple(value for value in values if value in axes.get(name, values)) or values
            for name, values in self.axes.items()
        }
        return dataclasses.replace(self, axes=kept)

    def programs(self) -> Iterable[Config]:
        """Return the representatives of all programs that no early rule rejects."""
        expanded: list[Config] = []
        for point in self.points():
            try:
                expanded += self.expand(point, self.problem, self.device)
            except (KernelError, MemoryError):
                raise
            except Exception as e:
                raise self._broken("expand", f"failed for {point}: {in_short(e)}") from e
        return dict.fromkeys(map(self.canonicalize, expanded))

    def odd_parameters(self, config: Config) -> set[str]:
        """Return missing parameters and those that are neither axes nor options; rules judge what `expand` adds."""
        known = self.axes.keys()
        return (known ^ config.keys()) - set(self.options) if self.expand is _unchanged else known - config.keys()

    def canonicalize(self, config: Config) -> Config:
        """Return the representative of `config`'s program for this problem."""
        try:
            found = self.canonical(config, self.problem, self.device)
        except (KernelError, MemoryError):
            raise
        except Exception as e:
            raise self._broken("canonical", f"failed for {config}: {in_short(e)}") from e
        if not isinstance(found, Config):
            whose = "expand" if found is config else "canonical"
            raise self._broken(whose, f"returned {found!r:.60}: expected Configs")
        return found

    def rejection(self, config: Config, *, fatal_only: bool = False) -> str | None:
        """Return why a config is not tried ("rule: reason"), or None when it may be.

        Args:
            config: any config of this kernel.
            fatal_only: ask only the rules that say whether it can run at all.
        """
        for rule in self.rules:
            if fatal_only and not rule.fatal:
                continue
            reason = self._reason(rule, config)
            if reason is not None:
                return f"{rule.name}: {reason}"
        return None

    def _reason(self, rule: Rule, config: Config) -> str | None:
        """Why a rule rejects a config, or None."""
        try:
            reason = rule.rejects(config, self.problem, self.device)
        except (KernelError, MemoryError):
            raise
        except Exception as e:
            raise self._broken(f"the rule {rule.name!r}", f"failed for {config}: {in_short(e)}") from e
        if reason is not None and not isinstance(reason, str):
            raise self._broken(f"the rule {rule.name!r}", f"returned {reason!r:.60}: expected None, or why in words")
        return reason


def _dissimilarity(one: Config, other: Config) -> float:
    """Count steps: a factor of two in a number, any other word or boolean, a parameter that one config lacks."""
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
