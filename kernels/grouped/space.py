"""Search spaces of the op `grouped_mm`, made from those of one product of average size on its share of the device."""

from __future__ import annotations

import dataclasses
import functools

from tuner.errors import ProblemError
from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.batched.space import config_of, of_many, share
from tuner.kernels.cost import model as cost
from tuner.kernels.gemm.pointer import default as pointer_default
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.grouped.operands import groups_of, is_listed
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.launch.launch import TILE
from tuner.problem import Problem

POINTER = "grouped_pointer"
TMA = "grouped_tma"
MOST_GROUPS = 4096
"""The most groups. Every program holds one number per group, which takes 32 registers in each thread of four warps."""
_PROGRAMS = "PROGRAMS_PER_SM"
_MANY = 64
"""Programs per multiprocessor that are so many that few of them take a second tile."""


def supports_pointer(problem: Problem, device: Device) -> str | None:
    """Why `grouped_pointer` cannot serve a problem on a device, or None."""
    if problem.scaling != "none":
        return f"no scaling {problem.scaling!r}: groups have no scales"
    if is_listed(problem) and problem.has_bias:
        return "no bias: lists of matrices have none"
    try:
        groups = groups_of(problem)
    except ProblemError as e:
        return str(e)
    if groups > MOST_GROUPS:
        return f"{groups} groups: it takes {MOST_GROUPS} at most"
    return pointer_space.supports(problem, device)


def supports_tma(problem: Problem, device: Device) -> str | None:
    """Why `grouped_tma` cannot serve a problem on a device, or None."""
    if reason := supports_pointer(problem, device):
        return reason
    if is_listed(problem):
        return "a list of matrices would need a list of descriptors"
    if problem.layout[0] == "t":
        return "A's rows are not contiguous: groups would begin anywhere, where TMA takes multiples of 16 bytes"
    return tma_space.supports_tiles(average(problem), device)


@functools.lru_cache(maxsize=1024)
def average(problem: Problem) -> Problem:
    """The product of a group of average size."""
    return problem.with_m(-(-problem.m // groups_of(problem)))


def pointer(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `grouped_pointer`."""
    single = pointer_space.space(average(problem), device)
    if device.is_interpreter:
        # There are twice as many configs as for `pointer`, with many more programs each, and a demo should end soon.
        single = single.narrowed(BLOCK_SIZE_M=(16, 32), BLOCK_SIZE_N=(32,), BLOCK_SIZE_K=(32,))
    return _of_groups(POINTER, single, groups_of(problem))


def tma(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `grouped_tma`."""
    return _of_groups(TMA, tma_space.space(average(problem), device), groups_of(problem))


def _of_groups(kernel: str, single: SearchSpace, groups: int) -> SearchSpace:
    programs: tuple[Value, ...] = (1, _MANY) if single.device.is_interpreter else (1, 2, _MANY)
    space = of_many(single, kernel, groups, {_PROGRAMS: programs})
    own = (tile_rules.parameters(lambda *_: space.axes), _not_resident)
    return dataclasses.replace(space, rules=(*own, *(rule for rule in space.rules if rule.name != "parameters")))


@rule("resident", "programs that wait until others end find no tile left")
def _not_resident(config: Config, problem: Problem, device: Device) -> str | None:
    programs = config.integer(_PROGRAMS)
    # Barriers are too small to decide whether two programs fit.
    needed = programs * tile_resources.shared_bytes(config, problem, device)
    if 1 < programs < _MANY and needed > device.shared_bytes and not device.is_interpreter:
        return f"{programs} programs take {needed} B, a multiprocessor has {device.shared_bytes}"
    return None


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The estimated time in microseconds if all products have the average size."""
    return cost.tiled(
        config, average(problem), device, by_tma=config.kernel == TMA, products=groups_of(problem), persistent=True
    )


def default_pointer(problem: Problem, device: Device) -> Config:
    """The `pointer` kernel's default for one product of average size, with a program for every tile."""
    single = pointer_default.default_config(average(problem), share(device, groups_of(problem)))
    return config_of(single.replace(**{_PROGRAMS: _MANY}), pointer(problem, device))


def default_tma(problem: Problem, device: Device) -> Config:
    """The candidate with the least estimated time for a product of average size, with a program for every tile."""
    single, part = average(problem), share(device, groups_of(problem))

    def estimated(config: Config) -> tuple[float, int, int]:
        us = cost.tiled(config, single, part, by_tma=True)
        return us, -config.integer(_PROGRAMS), abs(config.integer("GROUP_SIZE_M", 1) - 8)

    launched = {"GROUP_SIZE_M": 1, _PROGRAMS: _MANY, "num_stages": 1, "num_warps": 4}
    return tma(problem, device).best(estimated) or Config(TMA, **dict.fromkeys(TILE, 64), **launched)
