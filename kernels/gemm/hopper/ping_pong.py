"""The `ping_pong` kernel: one warp loads, and two warpgroups take tiles in turn. For Hopper, in Gluon."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

from tuner.hardware.device import Device, multiprocessors
from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands, placement
from tuner.kernels.cost.tile import memory_bytes_per_us
from tuner.kernels.gemm import launches, sums
from tuner.kernels.gemm.hopper import cluster, loader, output, ping_pong_jit, resources, tile, warp_specialized
from tuner.kernels.gemm.hopper.ping_pong_space import NAME, shared_bytes, space, supports
from tuner.kernels.gemm.hopper.warp_specialized import laid_out
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.gemm.tma.spec import descriptor, destination_strides
from tuner.launch.launch import TILE, Launch, compiler_options
from tuner.problem import Problem, dtype

VERSION = 1
_REGISTERS = warp_specialized.TWO_WARPGROUPS


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


class Constants(NamedTuple):
    """What `modelled_us` is fitted by (benchmarks/fit/ping_pong.py).

    Attributes:
        l2_bytes: bytes a cycle that the L2 sends a multiprocessor.
        operand_cycles: cycles of a wgmma beside a quarter of one for each of its columns.
        shared_bytes: bytes a cycle that shared memory takes in and gives to the tensor cores, of both together.
        store_bytes: bytes of sums a cycle that a warpgroup finishes and stores.
        start_us: first loads.
        memory_share: of the bandwidth that the fastest kernels reach.
        idle_gain: by how much the clock rises where all multiprocessors idle, per share of them that does.
        short_clock: the clock for 8-bit operands over that for others: both run at the power limit.

    They are fitted together, and none of them is what the hardware's documents say.
    """

    l2_bytes: float
    operand_cycles: float
    shared_bytes: float
    store_bytes: float
    start_us: float
    memory_share: float
    idle_gain: float
    short_clock: float


CONSTANTS = Constants(92.0, 18.5, 148.0, 20.3, 0.727, 0.802, 0.363, 0.956)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """How long a config takes, microseconds."""
    return modelled_us(config, problem, device, CONSTANTS)


def estimates_us(configs: Iterable[Config], problem: Problem, device: Device) -> dict[Config, float]:
    """The same of many configs."""
    return {config: estimate_us(config, problem, device) for config in configs}


def modelled_us(config: Config, problem: Problem, device: Device, by: Constants) -> float:
    """How long a config takes, microseconds.

    A step along K takes as long as the tensor cores, the L2 or shared memory needs for it. A warpgroup stores its tile
    while the other multiplies, so only a program's last tile adds its storing, unless that takes longer than a tile's
    products.
    """
    rows, width, length = config.integer("BLOCK_SIZE_M"), resources.width(config), config.integer("BLOCK_SIZE_K")
    itemsize = dtype.ITEMSIZE[problem.a_dtype]
    stage = resources.stage_bytes(config, problem)
    wgmmas, widths = rows / 64 * length * itemsize / 32, 2 if config.integer("BLOCK_SIZE_N_REST") else 1
    multiplied = wgmmas * (widths * by.operand_cycles + width / 4)
    moved = (wgmmas * (widths * 64 + width) * 32 + stage) / by.shared_bytes
    step = sum(one**_SHARPNESS for one in (multiplied, stage / by.l2_bytes, moved)) ** (1 / _SHARPNESS)
    products = -(-problem.k // length) * step
    stored = rows * width * 2 / by.store_bytes
    tiles = resources.tiles(config, problem)
    each = -(-tiles // device.sm_count)
    cycles = each * (products if each == 1 else max(products, (products + stored) / 2)) + stored
    clock = device.sustained_mhz * (by.short_clock if itemsize == 1 else 1.0)
    clock *= 1 + by.idle_gain * (1 - tiles / (each * device.sm_count))
    memory_us = problem.bytes_moved / (memory_bytes_per_us(device) * by.memory_share)
    total: float = by.start_us + ((cycles / clock) ** 3 + memory_us**3) ** (1 / 3)
    return total


_SHARPNESS = 4
"""The p of a p-norm: the longest of a step's parts hides the others, unless they are nearly as long."""


def default_config(problem: Problem, device: Device) -> Config:
    """The config with the least estimated time; ties go to wide groups, as those of `warp_specialized` do."""
    tried = space(problem, device)
    estimated = functools.partial(estimate_us, problem=problem, device=device)
    return tried.best(estimated, ties=lambda config: -config.integer("GROUP_SIZE_M")) or tried.smallest()


def order(config: Config, problem: Problem, device: Device) -> sums.Order:  # noqa: ARG001
    """How a config sums: whole, by wgmma."""
    return sums.by_wgmma(config, problem)


SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    estimates_us=estimates_us,
    sources=(
        *sources_of(ping_pong_jit, cluster, loader, tile, output, program),
        laid_out,
        _static,
        descriptor,
        placement,
    ),
    order=order,
)
