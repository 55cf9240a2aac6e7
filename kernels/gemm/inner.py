"""Kernels that multiply for another one, which copies operands first: their configs, spaces and rules within its own.

A config of the outer kernel names the inner one (INNER) and has all of its parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config, Value
from tuner.kernel.space import Rule, SearchSpace
from tuner.kernels.base.operands import Operands
from tuner.kernels.base.program import Program
from tuner.kernels.space.rule import rule
from tuner.launch.launch import Launch
from tuner.problem import Problem


class Inner(NamedTuple):
    """A kernel that may multiply: its description, its launches, and how long a config takes, microseconds."""

    spec: KernelSpec
    program: Program[Operands]
    estimate_us: Callable[[Config, Problem, Device], float]


@dataclass(frozen=True, eq=False, slots=True)
class InnerKernels:
    """The kernels that may multiply for another one. They load by TMA.

    Attributes:
        outer: the other kernel's name.
        kernels: by the values of INNER.
        computed: the problem that one of them computes, by its name, for the outer kernel's.
        own: the outer kernel's own parameters besides INNER.
        narrowed: the values to try of some axes of their spaces.
        refused: why a kernel cannot take the copies for a problem on a device, beside what it says itself; or None.
    """

    outer: str
    kernels: Mapping[str, Inner]
    computed: Callable[[str, Problem], Problem]
    own: tuple[str, ...] = ()
    narrowed: Mapping[str, tuple[Value, ...]] | None = None
    refused: Callable[[str, Problem, Device], str | None] = lambda _name, _problem, _device: None

    def of(self, config: Config) -> Inner:
        """The kernel that a config of the outer one names."""
        return self.kernels[str(config["INNER"])]

    def config(self, config: Config) -> Config:
        """The inner kernel's own config."""
        return _inner_config(self, config)

    def wrapped(self, inner: Config, **own: Value) -> Config:
        """The outer kernel's config for an inner one's and its own parameters."""
        return Config(self.outer, **dict(inner.pairs), INNER=inner.kernel, **own)

    def program(self, operands: Operands, config: Config) -> Sequence[Launch]:
        """The inner kernel's launches, of operands that are copied."""
        return self.of(config).program(operands, self.config(config))

    def reasons(self, problem: Problem, device: Device) -> dict[str, str | None]:
        """Why each kernel cannot serve a problem once its operands are copied, or None if it can."""
        return _reasons(self, problem, device)

    def supports(self, problem: Problem, device: Device) -> str | None:
        """Why none of them can, or None."""
        reasons = self.reasons(problem, device)
        return None if None in reasons.values() else "; ".join(f"{name}: {reason}" for name, reason in reasons.items())

    def able(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """The kernels that can."""
        return tuple(name for name, reason in self.reasons(problem, device).items() if reason is None)

    def options(self, problem: Problem, device: Device) -> tuple[str, ...]:
        """The options of their configs."""
        names = self.able(problem, device)
        return tuple(sorted({option for name in names for option in self.space(name, problem, device).options}))

    def space(self, name: str, problem: Problem, device: Device) -> SearchSpace:
        """The search space of an inner kernel, without loads by pointers."""
        found: SearchSpace = self.kernels[name].spec.space(self.computed(name, problem), device)
        return found.narrowed(LOADS=("tma",), **(self.narrowed or {}))

    def configs(self, name: str, problem: Problem, device: Device) -> list[Config]:
        """All configs of that space."""
        return _inner_configs(self, name, problem, device)

    def estimate_us(self, config: Config, problem: Problem, device: Device) -> float:
        """How long the product alone takes, microseconds."""
        inner = self.config(config)
        return self.of(config).estimate_us(inner, self.computed(inner.kernel, problem), device)

    def refinements(self, config: Config, problem: Problem, device: Device) -> Iterator[Config]:
        """The inner kernel's configs with options."""
        inner = self.config(config)
        return iter(self.space(inner.kernel, problem, device).refinements(inner))

    def canonical(self, config: Config, problem: Problem, device: Device) -> Config:
        """The inner kernel's config that stands for equal programs."""
        inner = self.config(config)
        return self.space(inner.kernel, problem, device).canonicalize(inner)

    def shared_bytes(self, config: Config, problem: Problem, device: Device) -> int:
        """Shared memory of the inner kernel, an upper bound."""
        needed = self.of(config).spec.shared_bytes
        assert needed is not None
        inner = self.config(config)
        return needed(inner, self.computed(inner.kernel, problem), device)

    def rules(self) -> tuple[Rule, ...]:
        """The rules of the outer kernel's space that are the inner one's."""

        @rule("parameters", "the kernel's own", fatal=True)
        def malformed(config: Config, problem: Problem, device: Device) -> str | None:
            if config.get("INNER") not in self.kernels:
                return f"INNER is {config.get('INNER')!r}: expected one of {', '.join(self.kernels)}"
            if config.get("LOADS", "tma") != "tma":
                return f"LOADS is {config.get('LOADS')!r}: copies are loaded by TMA"
            return self.reasons(problem, device)[str(config["INNER"])]

        @rule("inner kernel", "its own rules", fatal=True)
        def cannot(config: Config, problem: Problem, device: Device) -> str | None:
            inner = self.config(config)
            return self.space(inner.kernel, problem, device).rejection(inner, fatal_only=True)

        @rule("inner kernel", "its own rules")
        def would_not(config: Config, problem: Problem, device: Device) -> str | None:
            inner = self.config(config)
            return self.space(inner.kernel, problem, device).rejection(inner)

        return malformed, cannot, would_not


@functools.lru_cache(maxsize=65536)
def _inner_config(kernels: InnerKernels, config: Config) -> Config:
    parameters = {name: value for name, value in config.pairs if name != "INNER" and name not in kernels.own}
    return Config(str(config["INNER"]), **parameters)


@functools.lru_cache(maxsize=1024)
def _reasons(kernels: InnerKernels, problem: Problem, device: Device) -> dict[str, str | None]:
    return {
        name: kernels.refused(name, problem, device) or one.spec.unserved(kernels.computed(name, problem), device)
        for name, one in kernels.kernels.items()
    }


@functools.lru_cache(maxsize=16)
def _inner_configs(kernels: InnerKernels, name: str, problem: Problem, device: Device) -> list[Config]:
    return kernels.space(name, problem, device).configs()
