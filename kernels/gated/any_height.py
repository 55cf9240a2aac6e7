"""The `gated_any_height` kernel: tiles of any height of x, for a gate and up. For Hopper, in Gluon.

It is `any_width`'s kernel with exchanged operands and both weights as one matrix, whose rows take turns of 64.
"""

from __future__ import annotations

import functools
from typing import Any

from tuner.hardware.device import Device, multiprocessors
from tuner.kernel.config import Config
from tuner.kernels.base.program import spec_of
from tuner.kernels.gated import launches
from tuner.kernels.gated.any_height_space import (
    NAME,
    both,
    estimate_us,
    fills,
    shared_bytes,
    space,
    supports,
    teams,
    ties,
)
from tuner.kernels.gated.launches import GATED_LINEAR
from tuner.kernels.gated.operands import GatedOperands
from tuner.kernels.gemm import launches as product_launches
from tuner.kernels.gemm.any_tile import any_width, any_width_jit, wgmma_ptx
from tuner.kernels.gemm.any_tile.any_height_tile import as_computed
from tuner.kernels.gemm.hopper.cluster_sizes import clusters_at_once
from tuner.kernels.gemm.hopper.warp_specialized import laid_out
from tuner.kernels.gemm.spec import simplicity
from tuner.kernels.space import refinements
from tuner.launch.launch import TILE, Launch
from tuner.problem import Problem

VERSION = 1
_ROWS = 64
"""Rows of a weight that one load takes: a warpgroup has as many of both."""


def program(operands: GatedOperands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    x, out, view = operands.a, operands.out.t(), launches.view_of(operands)
    tiles, group, constants, options = _static(view, config)
    _, columns, length = (constants[name] for name in TILE)
    ctas = config.integer(refinements.NUM_CTAS, 1)
    m, n, k = view.shape
    rest = wgmma_ptx.chunk_of(columns)
    arguments = (
        laid_out(operands.b, _ROWS, length, ctas),
        laid_out(operands.up, _ROWS, length, ctas),
        *(laid_out(x, box, length, ctas) if columns & box else None for box in any_width.BOXES),
        laid_out(out, _ROWS, 64, ctas),
        laid_out(out, _ROWS, rest, ctas) if columns % 64 else None,
        *(None, None, None),  # neither a bias nor scales
        *(2 * n, m, k),
        *(None, None),  # TMA stores the output
        group,
    )
    at_once = clusters_at_once(ctas, multiprocessors(x.device.index if x.is_cuda else None))
    return (Launch(any_width_jit.any_width_kernel, (min(tiles, at_once),), arguments, constants, options),)


@functools.lru_cache(maxsize=4096)
def _static(view: launches.View, config: Config) -> tuple[int, int, dict[str, Any], dict[str, Any]]:
    """Number of tiles, GROUP_SIZE_M, constexprs and compiler options: those of both weights as one."""
    m, n, k = view.shape
    row_x, row_weight, row_out = view.strides
    both = product_launches.View(
        problem=view.problem,
        shape=(2 * n, m, k),
        products=1,
        strides=(row_weight, 1, 1, row_x, 1, row_out),
        transposed=(False, True, True),
        vectors=(view.vector_k, view.vector_k, view.vector_n),
        exchanged=True,
    )
    tiles, group, constants, options = any_width.static(both, as_computed(config), teams(config))
    return tiles, group, {**constants, "TRIGGER": refinements.AFTER_LAST_STEP}, options


def default_config(problem: Problem, device: Device) -> Config:
    """The config with the least estimated time."""
    tried = space(problem, device)
    best = tried.best(lambda config: estimate_us(config, problem, device), ties=lambda config: ties(config, problem))
    return best or tried.smallest()


SPEC = any_width.ring_checked(
    spec_of(
        GATED_LINEAR,
        NAME,
        VERSION,
        program,
        supports=supports,
        space=space,
        default_config=default_config,
        shared_bytes=shared_bytes,
        estimate_us=estimate_us,
        sources=(*any_width.SOURCES, launches, program, as_computed, teams, _static),
        simplicity=simplicity,
        runtime_parameters=("GROUP_SIZE_M",),
        precedence=lambda problem, device: 2 if fills(problem, device) else 0,
    ),
    lambda config, problem: (as_computed(config), both(problem)),
)
