"""What all GEMM kernels have in common, and how their KernelSpecs are made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace, Ties
from tuner.kernels.base import blocks, epilogue, numerics
from tuner.kernels.base.interpreted import launch_interpreted
from tuner.kernels.base.operands import make_operands
from tuner.kernels.base.program import Given, Operation, Program, spec_of
from tuner.kernels.base.workspace import workspace
from tuner.kernels.gemm import invariant, launches, sums
from tuner.kernels.gemm.vendor import vendor
from tuner.kernels.space import precedence
from tuner.problem import Problem

MATMUL = Operation("matmul", make_operands, vendor, numerics.reference, launch_interpreted, numerics.tolerance)


def gemm_spec(
    operation: Operation[Given],
    name: str,
    version: int,
    program: Program[Given],
    *,
    ties: Ties = lambda _config: 0,
    order: sums.Ordered | None = None,
    exchanges: bool = False,
    **fields: Any,
) -> KernelSpec:
    """Make a kernel of an op whose products are GEMMs; its last launch is the GEMM. See `spec_of` for the arguments.

    With `order`, which says how a config sums, it also serves batch-invariant problems (`invariant.fields_of`, which
    `exchanges` is for). Without `default_config` the default is the config with the least estimated time; `ties` orders
    configs of equal estimates, the first best, there and among those of an invariant family.
    """
    fields.setdefault("default_config", least_estimated(fields, ties))
    if order is not None:
        fields = invariant.fields_of(order, fields, ties=ties, exchanges=exchanges)
    usual: dict[str, Any] = {"simplicity": simplicity, "runtime_parameters": ("GROUP_SIZE_M",)}
    if operation is MATMUL:
        usual["precedence"] = functools.partial(_precedence, name)
    return spec_of(operation, name, version, program, **(usual | fields))


def least_estimated(fields: Mapping[str, Any], ties: Ties) -> Callable[[Problem, Device], Config]:
    """Return the formula of a kernel whose default is the config with the least estimated time."""

    def default_config(problem: Problem, device: Device) -> Config:
        tried: SearchSpace = fields["space"](problem, device)
        estimates_us = fields.get("estimates_us")
        estimated = functools.partial(fields["estimate_us"], problem=problem, device=device)
        among = estimates_us and estimates_us(tried.programs(), problem, device)
        return tried.best(estimated, ties=ties, among=among) or tried.smallest()

    return default_config


def _precedence(kernel: str, problem: Problem, device: Device) -> int:
    # Imported only for defaults, so that a process that serves one kernel's winners loads no other kernel's conditions.
    from tuner.kernels.gemm.precedence import TABLE

    return precedence.of(TABLE, kernel, problem, device)


def simplicity(config: Config) -> tuple[Any, ...]:
    """The sort key of configs by simplicity: splits, bytes in flight, threads, tile order, number of options."""
    rows = config.integer("BLOCK_SIZE_M") + config.integer("BLOCK_SIZE_N") + config.integer("BLOCK_SIZE_N_REST")
    held = rows * config.integer("BLOCK_SIZE_K") * config.integer("num_stages", 1)
    return (
        config.integer("SPLIT_K", 1),
        held,
        config.integer("num_warps"),
        config.integer("GROUP_SIZE_M"),
        len(config),
        config,
    )


def sources_of(*parts: Any) -> tuple[Any, ...]:
    """The given sources, and those that all GEMM kernels share."""
    return (*parts, blocks, epilogue, launches, numerics.max_imprecise, workspace)
