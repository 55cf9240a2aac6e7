"""Makes a kernel of `matmul` serve batch-invariant problems: only configs of the family's one order of sums."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from tuner.hardware import device as devices
from tuner.hardware.device import Device
from tuner.kernel import Invariance, registry
from tuner.kernel.config import Config
from tuner.kernel.space import Rule, SearchSpace, Ties
from tuner.kernels.base.operands import Operands, guarded
from tuner.kernels.gemm import sums
from tuner.launch.launch import TILE
from tuner.problem import Problem
from tuner.problem import dtype as dtypes

_WITNESSES = {True: "block_scaled", False: "pointer"}
"""The kernel that writes what every config must, by whether scales are of blocks: it serves every M."""


def fields_of(
    order: sums.Ordered,
    fields: dict[str, Any],
    *,
    ties: Ties,
    exchanges: bool = False,
) -> dict[str, Any]:
    """A kernel's fields as its KernelSpec needs them to serve such problems too; for others they are as they were.

    Args:
        order: how its configs sum.
        fields: `supports`, `space`, `default_config` and `estimate_us` among them.
        ties: orders configs of equal estimates, the least first.
        exchanges: whether the device always computes the transposed output, so that few rows need no padding.
    """
    supports: Callable[[Problem, Device], str | None] = fields["supports"]
    space: Callable[[Problem, Device], SearchSpace] = fields["space"]
    default_config: Callable[[Problem, Device], Config] = fields["default_config"]
    estimate_us: Callable[[Config, Problem, Device], float] = fields["estimate_us"]

    def one_by_one(configs: Iterable[Config], problem: Problem, device: Device) -> Mapping[Config, float]:
        return {config: estimate_us(config, problem, device) for config in configs}

    estimates_us = fields.get("estimates_us", one_by_one)

    def tall_enough(problem: Problem, device: Device) -> Problem:
        return problem if exchanges else sums.tall_enough(problem, device)

    def another_order(config: Config, problem: Problem, device: Device) -> str | None:
        found, wanted = order(config, problem, device), sums.of_family(problem, device)
        return None if found == wanted else f"it sums {found}, every M of this family {wanted}"

    rule = Rule("one order", "docs/numerics.md, Batch invariance", another_order, fatal=True)

    def invariant_supports(problem: Problem, device: Device) -> str | None:
        if not problem.invariant:
            return supports(problem, device)
        tall = tall_enough(problem, device)
        if reason := sums.none_on(device) or supports(tall, device):
            return reason
        axes = invariant_space(problem, device).axes
        if "BLOCK_SIZE_K" not in axes:
            return None  # it has an inner kernel, whose own reasons count
        # No other order is possible as a last resort if the first values of all axes have this one.
        first = Config(space(tall, device).kernel, **{name: values[0] for name, values in axes.items()})
        return another_order(first, problem, device)

    def invariant_space(problem: Problem, device: Device) -> SearchSpace:
        if not problem.invariant:
            return space(problem, device)
        axes = sums.axes_of(problem, device, exchanges=exchanges)
        whole = space(tall_enough(problem, device), device).narrowed(**axes)
        return dataclasses.replace(whole, rules=(*whole.rules, rule))

    def invariant_default(problem: Problem, device: Device) -> Config:
        if not problem.invariant:
            return default_config(problem, device)
        tried = invariant_space(problem, device)
        estimates = estimates_us(tried.programs(), problem, device)
        if (found := tried.best(estimates.__getitem__, ties=ties, among=estimates)) is not None:
            return found
        # Nothing is worth trying here. What a fatal rule rejects may not even end, so it is no last resort.
        others = (default_config(tall_enough(problem, device), device), *tried.programs())
        able = (one for one in others if tried.rejection(one, fatal_only=True) is None)
        return min(able, key=lambda one: (estimate_us(one, problem, device), one), default=None) or tried.smallest()

    kept = {"supports": invariant_supports, "space": invariant_space, "default_config": invariant_default}
    return {**fields, **kept, "invariance": Invariance(witness, rows)}


def witness(operands: Operands) -> torch.Tensor:
    """`Invariance.witness`, by `witness_config`."""
    problem, on = operands.problem, operands.a.device
    config = witness_config(problem, devices.current(on.index if on.type == "cuda" else None))
    out = torch.empty_like(operands.out)
    registry.find(problem.op, config.kernel).launch(dataclasses.replace(operands, out=out), config)
    return out


def witness_config(problem: Problem, device: Device) -> Config:
    """The config of a family that serves every M: a tile of 64x64 (the interpreter's has 32 rows), by pointers."""
    spec = registry.find(problem.op, _WITNESSES[problem.scaling == "block"])
    tile = {} if device.is_interpreter else {**dict.fromkeys(TILE, (64,)), "num_warps": (4,)}
    return spec.space(problem, device).narrowed(**tile).smallest()


def rows(operands: Operands, m: int) -> Operands:
    """`Invariance.rows`: views of the operands, except for an A stored [K, M], whose rows' length is M."""
    problem, scale_a = operands.problem.with_m(m), operands.scale_a
    a = operands.a[:m]
    if problem.layout[0] == "t":
        a = a.t().contiguous().t()
    out, buffer = guarded(m, problem.n, dtypes.to_torch(problem.out_dtype), str(a.device))
    scale_a = scale_a if scale_a is None or scale_a.dim() == 0 else scale_a[:m]
    return dataclasses.replace(operands, a=a, out=out, buffer=buffer, problem=problem, scale_a=scale_a)
