"""The `any_height_split` kernel: tiles of `any_height`, whose sums the blocks of a cluster split. For Hopper, in Gluon.

It is for few tiles and a long K. Of few rows and few columns, `cluster_k` is mostly as fast.
"""

from __future__ import annotations

import functools
from typing import Any

from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands, placement
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.any_tile import any_height_split_jit, any_width, any_width_jit, scaled_steps, wgmma_ptx
from tuner.kernels.gemm.any_tile.any_height_split_space import (
    NAME,
    default_config,
    estimate_us,
    shared_bytes,
    space,
    supports,
)
from tuner.kernels.gemm.any_tile.any_height_tile import as_computed, computed_by
from tuner.kernels.gemm.hopper import cluster as warp_specialized_cluster
from tuner.kernels.gemm.hopper import cluster_parts, loader, output, tile
from tuner.kernels.gemm.hopper.resources import warpgroups
from tuner.kernels.gemm.hopper.warp_specialized import laid_out, scale_strides
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.gemm.tma.spec import descriptor
from tuner.kernels.space.refinements import NUM_CTAS, SHARE_B
from tuner.launch.launch import TILE, Launch, compiler_options

VERSION = 1


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    swapped = operands.exchanged()
    a, weight, out = swapped.a, swapped.b.t(), swapped.out
    view = launches.view_of(swapped, exchanged=True)
    clusters, constants, options = _static(view, as_computed(config))
    rows, columns, length = (constants[name] for name in TILE)
    loaded, ctas = any_width_jit.loaded_columns(columns, view.transposed[1]), config.integer(NUM_CTAS, 1)
    arguments = (
        laid_out(a, any_width_jit.box_rows(rows, ctas, view.transposed[0]), length, ctas),
        *(laid_out(weight, box, length, ctas) if loaded & box else None for box in any_width.BOXES),
        out,
        swapped.bias,
        swapped.scale_a,
        swapped.scale_b,
        *view.shape,
        *out.stride(),
        *scale_strides(swapped),
    )
    return (Launch(any_height_split_jit.any_height_split_kernel, (clusters,), arguments, constants, options),)


@functools.lru_cache(maxsize=4096)
def _static(view: launches.View, config: Config) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Number of clusters, constexprs and compiler options, of a config as the device computes it."""
    rows, columns = config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N")
    splits, groups = config.integer("SPLIT_K"), warpgroups(config)
    sets = 3 if view.problem.scaling == "block" else 1  # of sums, and of products of two steps
    registers = any_width.registers_for(groups, columns, sets * rows * columns / (128 * groups))
    given = {
        **launches.of_view(view, config),
        "WARPGROUPS": groups,
        "SPLITS": splits,
        "SHARE_B": bool(config.get(SHARE_B, False)),
        "LOADER_REGISTERS": registers.loader,
        "MULTIPLIER_REGISTERS": registers.multiplier,
    }
    constants = launches.named(any_height_split_jit.any_height_split_kernel, given)
    options = {**compiler_options(config), "num_warps": 4, "maxnreg": registers.launched}
    del options["num_stages"]
    tiles = config.integer(NUM_CTAS, 1) // splits
    down, across = (tiles, 1) if constants["SHARE_B"] else (1, tiles)
    return -(-view.shape[0] // (rows * down)) * -(-view.shape[1] // (columns * across)), constants, options


SOURCES = (
    *sources_of(any_height_split_jit, scaled_steps, any_width_jit, wgmma_ptx, cluster_parts, warp_specialized_cluster),
    loader,
    tile,
    output,
    program,
    _static,
    as_computed,
    any_width.registers_for,
    laid_out,
    scale_strides,
    descriptor,
    placement,
)

SPEC = any_width.ring_checked(
    gemm_spec(
        MATMUL,
        NAME,
        VERSION,
        program,
        supports=supports,
        space=space,
        default_config=default_config,
        shared_bytes=shared_bytes,
        estimate_us=estimate_us,
        sources=SOURCES,
        runtime_parameters=(),
    ),
    computed_by,
)
"""Without an order of sums: batch-invariant problems have other kernels that split sums."""
