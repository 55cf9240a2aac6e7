"""The `gated_pointer` kernel: one tile of gate and up per program, from operands loaded through pointers."""

from __future__ import annotations

from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.kernels.base import blocks, epilogue
from tuner.kernels.base.program import spec_of
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.tile import Loop
from tuner.kernels.gated import jit as gated_kernel
from tuner.kernels.gated import launches
from tuner.kernels.gated.launches import GATED_LINEAR
from tuner.kernels.gated.operands import GatedOperands, product
from tuner.kernels.gated.space import (
    MOST_SWAPPED_ROWS,
    POINTER,
    as_computed,
    pointer,
    pointer_shared_bytes,
    supports,
)
from tuner.kernels.gemm.pointer import default as pointer_default
from tuner.kernels.gemm.spec import simplicity
from tuner.kernels.space import tile_resources
from tuner.launch.launch import Launch
from tuner.problem import Problem

VERSION = 1
_CLEARLY = 1.1
"""By how much one estimate must exceed another to say more than the cost model's error."""


def program(operands: GatedOperands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    view = launches.view_of(operands)
    grid, group, constants, options = _parts(view, config)
    arguments = (*launches.arguments_of(operands, view), group)
    return (Launch(gated_kernel.gated_kernel, grid, arguments, constants, options),)


def _own(_view: launches.View, config: Config) -> dict[str, Any]:
    return {"SWAP_AB": bool(config.get("SWAP_AB", False))}


_parts = launches.parts_of(gated_kernel.gated_kernel, _own)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate of both products as one."""
    inner, computed = as_computed(config, problem)
    return cost.terms(inner, computed, device, Loop(by_tma=False, exchanged=inner is not config)).us


def default_config(problem: Problem, device: Device) -> Config:
    """For few rows on wgmma or tcgen05 the least estimate, else the default of the kernel `pointer`."""
    tried, both = pointer(problem, device), product(problem)
    is_few = problem.m <= MOST_SWAPPED_ROWS and tile_resources.reads_shared(64, 64, 4, both, device)
    if is_few and not device.is_interpreter:
        found = _of_few_rows(tried)
        if found is not None:
            return found
    single = pointer_default.default_config(both, device)
    wide = max(32, single.integer("BLOCK_SIZE_N"))
    config = tried.canonicalize(Config(POINTER, **{**dict(single), "SWAP_AB": False, "BLOCK_SIZE_N": wide}))
    return (
        config
        if tried.rejection(config) is None
        else tried.best(lambda one: estimate_us(one, problem, device)) or config
    )


def _of_few_rows(tried: SearchSpace) -> Config | None:
    """The least estimate with SWAP_AB, unless one without it is clearly less: unaligned weights are read slower so."""

    def us(config: Config) -> float:
        return estimate_us(config, tried.problem, tried.device)

    swapped, plain = (tried.narrowed(SWAP_AB=(each,)).best(us) for each in (True, False))
    if swapped is None or plain is None:
        return swapped or plain
    return plain if us(swapped) > _CLEARLY * us(plain) else swapped


SPEC = spec_of(
    GATED_LINEAR,
    POINTER,
    VERSION,
    program,
    supports=supports,
    space=pointer,
    default_config=default_config,
    shared_bytes=pointer_shared_bytes,
    estimate_us=estimate_us,
    sources=(gated_kernel, launches, program, _own, blocks, epilogue),
    simplicity=simplicity,
    runtime_parameters=("GROUP_SIZE_M",),
)
