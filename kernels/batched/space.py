"""Search spaces of the op `bmm`, made from those of one product on its share of the device."""

from __future__ import annotations

import dataclasses

from tuner.errors import ProblemError
from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import Rule, SearchSpace
from tuner.kernels.batched.operands import batch_of
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.space import tile_rules
from tuner.problem import Problem

POINTER = "bmm_pointer"
TMA = "bmm_tma"
_FILLING = (tile_rules.waves, tile_rules.below_wgmma)
"""Rules about how tiles fill a device. `GROUP` is not among them, because it concerns one product: tiles that all run
at once need no order, however many products wait."""


def supports_pointer(problem: Problem, device: Device) -> str | None:
    """Why `bmm_pointer` cannot serve a problem on a device, or None."""
    return no_batch(problem) or pointer_space.supports(problem, device)


def supports_tma(problem: Problem, device: Device) -> str | None:
    """Why `bmm_tma` cannot serve a problem on a device, or None."""
    return no_batch(problem) or tma_space.supports_tiles(problem, device)


def no_batch(problem: Problem) -> str | None:
    """Why a problem is none of many products without scales, or None."""
    if problem.scaling != "none":
        return f"no scaling {problem.scaling!r}: batches have no scales"
    try:
        batch_of(problem)
    except ProblemError as e:
        return str(e)
    return None


def pointer(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `bmm_pointer`."""
    return of_many(pointer_space.space(problem, device), POINTER, batch_of(problem))


def tma(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `bmm_tma`."""
    return of_many(tma_space.space(problem, device), TMA, batch_of(problem))


def of_many(
    single: SearchSpace, kernel: str, products: int, axes: dict[str, tuple[Value, ...]] | None = None
) -> SearchSpace:
    """Make the search space of a kernel for many products from the space of one product.

    Args:
        single: the space of one product that has the device to itself.
        kernel: name of the kernel for many products.
        products: number of products.
        axes: further axes of that kernel.
    """
    part = share(single.device, products)
    rules = tuple(_asked_of(part, rule) if rule in _FILLING else rule for rule in single.rules)
    return dataclasses.replace(single, kernel=kernel, rules=rules, axes={**single.axes, **(axes or {})})


def config_of(single: Config, space: SearchSpace) -> Config:
    """Convert a config for one product to a config of the space for many products."""
    config = space.canonicalize(Config(space.kernel, **dict(single)))
    # All tiles of a product may run at once on the device but not on the product's share of it.
    return config if space.rejection(config) is None else space.canonicalize(config.replace(GROUP_SIZE_M=1))


def share(device: Device, products: int) -> Device:
    """One product's share of the device: a device with fewer multiprocessors."""
    return dataclasses.replace(device, sm_count=max(1, device.sm_count // products))


def _asked_of(part: Device, rule: Rule) -> Rule:
    def rejects(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001  judged on its share
        return rule.rejects(config, problem, part)

    return dataclasses.replace(rule, rejects=rejects)
