"""The search space of the op `grouped_mm`: that of one product of average size, on its share of the device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping

from tuner.config import Config, Value
from tuner.device import Device
from tuner.errors import ProblemError
from tuner.kernels import pointer_default, pointer_space, rules, tile_rules
from tuner.kernels.batched_space import share
from tuner.kernels.grouped_operands import groups_of, is_listed
from tuner.problem import Problem
from tuner.space import Rule, SearchSpace

NAME = "grouped_pointer"
MOST_GROUPS = 4096
"""Every program holds one number for each group: 32 registers a thread of four warps."""
_PROGRAMS = "PROGRAMS_PER_SM"
_MANY = 64
"""So many programs a multiprocessor that hardly any takes a second tile."""


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    try:
        groups = groups_of(problem)
    except ProblemError as e:
        return str(e)
    if problem.scaling != "none":
        return f"no scaling {problem.scaling!r}: groups have no scales"
    if is_listed(problem) and problem.has_bias:
        return "no bias: lists of matrices have none"
    if groups > MOST_GROUPS:
        return f"{groups} groups: it takes {MOST_GROUPS} at most"
    return pointer_space.supports(problem, device)


@functools.lru_cache(maxsize=1024)
def average(problem: Problem) -> Problem:
    """The product of a group of average size."""
    return problem.with_shape(-(-problem.m // groups_of(problem)), problem.n, problem.k)


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, axes(device), RULES, _canonical, _expand)


def axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values on a device."""
    if device.is_interpreter:
        tile: dict[str, tuple[Value, ...]] = {"BLOCK_SIZE_M": (16, 32), "BLOCK_SIZE_N": (32,), "BLOCK_SIZE_K": (32,)}
        return {**tile, "GROUP_SIZE_M": (1,), _PROGRAMS: (1, _MANY), "num_stages": (1,), "num_warps": (4,)}
    return {**pointer_space.axes(device), _PROGRAMS: (1, 2, _MANY)}


def default_config(problem: Problem, device: Device) -> Config:
    """What the `pointer` kernel would take for one product of average size; a program for every tile."""
    single = pointer_default.default_config(average(problem), share(device, groups_of(problem)))
    return space(problem, device).canonicalize(Config(NAME, **{_PROGRAMS: _MANY, **dict(single)}))


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    return pointer_space.expand(config, average(problem), device)


def _canonical(config: Config, problem: Problem, device: Device) -> Config:
    return pointer_space.canonical(config, average(problem), device)


def _of_average(rule: Rule) -> Rule:
    """A rule about one product, asked of one of average size; about how tiles fill a device, of a product's share."""
    shared = rule in (tile_rules.WAVES, tile_rules.BELOW_WGMMA)

    def rejects(config: Config, problem: Problem, device: Device) -> str | None:
        return rule.rejects(config, average(problem), share(device, groups_of(problem)) if shared else device)

    return dataclasses.replace(rule, rejects=rejects)


def _resident(config: Config, problem: Problem, device: Device) -> str | None:
    programs = config.integer(_PROGRAMS)
    needed = programs * rules.shared_bytes(config, average(problem), device)
    if 1 < programs < _MANY and needed > device.shared_bytes and not device.is_interpreter:
        return f"{programs} programs take {needed} B, a multiprocessor has {device.shared_bytes}"
    return None


RULES = (
    tile_rules.parameters(axes, tile_rules.OPTIONAL),
    *(_of_average(rule) for rule in pointer_space.RULES if rule.name != "parameters"),
    Rule("resident", "the kernel's own: programs that wait for others to end find no tile left", _resident),
)
