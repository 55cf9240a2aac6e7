"""Search spaces of the op `bmm`: those of one product, each of which has its share of the device."""

from __future__ import annotations

import dataclasses
import functools

from tuner.config import Config
from tuner.device import Device
from tuner.errors import ProblemError
from tuner.kernels import pointer_space, tile_rules, tma_space
from tuner.kernels.batched_operands import batch_of
from tuner.problem import Problem
from tuner.space import Rule, SearchSpace

POINTER = "bmm_pointer"
TMA = "bmm_tma"


def supports_pointer(problem: Problem, device: Device) -> str | None:
    """Why `bmm_pointer` cannot serve a problem on a device, or None."""
    return _no_batch(problem) or pointer_space.supports(problem, device)


def supports_tma(problem: Problem, device: Device) -> str | None:
    """Why `bmm_tma` cannot serve a problem on a device, or None."""
    return _no_batch(problem) or tma_space.supports_tiles(problem, device)


def _no_batch(problem: Problem) -> str | None:
    if problem.scaling != "none":
        return f"no scaling {problem.scaling!r}: batches have no scales"
    try:
        batch_of(problem)
    except ProblemError as e:
        return str(e)
    return None


@functools.lru_cache(maxsize=1024)
def share(device: Device, products: int) -> Device:
    """The device as one of many products has it: with so many of its multiprocessors."""
    return dataclasses.replace(device, sm_count=max(1, device.sm_count // products))


def of_share(rule: Rule) -> Rule:
    """A rule about how tiles fill a device, asked of a product's share."""

    def rejects(config: Config, problem: Problem, device: Device) -> str | None:
        return rule.rejects(config, problem, share(device, batch_of(problem)))

    return dataclasses.replace(rule, rejects=rejects)


def _of_share(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    # Not the rule of groups: tiles of one product that all run at once need no order, however many products wait.
    filling = (tile_rules.WAVES, tile_rules.BELOW_WGMMA)
    return tuple(of_share(rule) if rule in filling else rule for rule in rules)


POINTER_RULES = _of_share(pointer_space.RULES)
TMA_RULES = _of_share(tma_space.RULES)


def pointer(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `bmm_pointer`."""
    axes, made = pointer_space.axes(device), (pointer_space.canonical, pointer_space.expand)
    return SearchSpace(POINTER, problem, device, axes, POINTER_RULES, *made)


def tma(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `bmm_tma`."""
    axes, made = tma_space.axes(device), (pointer_space.canonical, tma_space.expand)
    return SearchSpace(TMA, problem, device, axes, TMA_RULES, *made)
