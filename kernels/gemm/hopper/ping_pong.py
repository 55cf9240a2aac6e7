"""The `ping_pong` kernel: one warp loads, and two warpgroups take tiles in turn. For Hopper, in Gluon."""

from __future__ import annotations

import functools
from typing import Any

from tuner.hardware.device import Device, multiprocessors
from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands, placement
from tuner.kernels.gemm import launches, sums
from tuner.kernels.gemm.hopper import (
    cluster,
    loader,
    output,
    ping_pong_jit,
    ping_pong_model,
    resources,
    tile,
    warp_specialized,
)
from tuner.kernels.gemm.hopper.ping_pong_space import NAME, shared_bytes, space, supports
from tuner.kernels.gemm.hopper.warp_specialized import laid_out
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.gemm.tma.spec import descriptor, destination_strides
from tuner.launch.launch import TILE, Launch, compiler_options
from tuner.problem import Problem

VERSION = 1
_REGISTERS = warp_specialized.TWO_WARPGROUPS
"""With row scales and a bias besides, 128x192 spills 88 bytes of a thread; no other tile does (compiled for sm_90,
stored by TMA)."""


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    a, b, out = operands.a, operands.b, operands.out
    view = launches.view_of(operands)
    tiles, group, constants, options = _static(view, config)
    rows, columns, length = (constants[name] for name in TILE)
    rest, strides = constants["BLOCK_SIZE_N_REST"], destination_strides(out)
    arguments = (
        laid_out(a, rows, length, 1),
        laid_out(b, length, columns, 1),
        laid_out(b, length, rest, 1) if rest else None,
        out if strides[0] else laid_out(out, rows, ping_pong_jit.PART.value, 1),
        operands.bias,
        operands.scale_a,
        operands.scale_b,
        *view.shape,
        *strides,
        group,
    )
    grid = (min(tiles, multiprocessors(a.device.index if a.is_cuda else None)),)
    return (Launch(ping_pong_jit.ping_pong_kernel, grid, arguments, constants, options),)


@functools.lru_cache(maxsize=4096)
def _static(view: launches.View, config: Config) -> tuple[int, int, dict[str, Any], dict[str, Any]]:
    """Number of tiles, GROUP_SIZE_M, constexprs and compiler options."""
    given = {
        **launches.of_view(view, config),
        "BLOCK_SIZE_N_REST": config.integer("BLOCK_SIZE_N_REST"),
        "LOADER_REGISTERS": _REGISTERS.loader,
        "MULTIPLIER_REGISTERS": _REGISTERS.multiplier,
    }
    constants = launches.named(ping_pong_jit.ping_pong_kernel, given)
    # The launch's num_warps are those of the first multiplying warpgroup. Gluon adds the warps of other partitions.
    options = {**compiler_options(config), "num_warps": 4, "maxnreg": _REGISTERS.launched}
    del options["num_stages"]
    rows = -(-view.shape[0] // config.integer("BLOCK_SIZE_M"))
    tiles = rows * -(-view.shape[1] // resources.width(config))
    return tiles, min(max(1, config.integer("GROUP_SIZE_M", 1)), rows), constants, options


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """How long a config takes, microseconds."""
    return ping_pong_model.estimate_us(config.integer("BLOCK_SIZE_M"), resources.width(config), problem, device)


def ties(config: Config) -> tuple[int, ...]:
    """Of equal estimates deep rings come first, and wide groups, as of `warp_specialized`."""
    return -config.integer("num_stages"), -config.integer("GROUP_SIZE_M")


def order(config: Config, problem: Problem, device: Device) -> sums.Order:  # noqa: ARG001
    """How a config sums: whole, by wgmma."""
    return sums.by_wgmma(config, problem)


SOURCES = (
    *sources_of(ping_pong_jit, cluster, loader, tile, output, program),
    *(laid_out, _static, descriptor, placement),
)

SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    ties=ties,
    sources=SOURCES,
    order=order,
)
