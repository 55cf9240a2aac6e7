"""Resources of a `warp_specialized` config: its tile as the device computes it, registers, shared memory, programs."""

from __future__ import annotations

import functools

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import exchanged
from tuner.kernels.cost import products
from tuner.kernels.cost.tile import Sides
from tuner.kernels.gemm.hopper import cluster_sizes
from tuner.kernels.gemm.sums import family_parts
from tuner.kernels.space import refinements, tile_resources
from tuner.problem import Problem, dtype

ROW_BYTES = 128
"""Bytes of one row of a stage along K where a kernel has no others: one swizzle of shared memory."""
OTHER_BYTES = 256
"""Shared memory besides barriers through which Triton passes values between warps."""
WGMMA_BYTES, WGMMA_ROWS = 32, 64
"""What one wgmma multiplies: bytes of its operands along K, and rows of A (PTX ISA, wgmma.mma_async)."""


def row_length(problem: Problem) -> int:
    """Elements along K of one row of a stage, `ROW_BYTES`."""
    return ROW_BYTES // dtype.ITEMSIZE[problem.a_dtype]


@functools.lru_cache(maxsize=1024)
def by_steps(problem: Problem) -> bool:
    """Whether each step's products are added in registers, as block scales or fp8 without fast accumulation require."""
    return problem.scaling == "block" or (dtype.is_fp8(problem.a_dtype) and not problem.fast_accum)


def as_computed(config: Config, problem: Problem) -> tuple[Config, Problem]:
    """A config and its problem as the device computes them, which with SWAP_AB are those of the transposed output."""
    if not config.get("SWAP_AB", False):
        return config, problem
    swapped = config.replace(BLOCK_SIZE_M=config["BLOCK_SIZE_N"], BLOCK_SIZE_N=config["BLOCK_SIZE_M"])
    return swapped, exchanged(problem)


def width(config: Config) -> int:
    """Columns of a tile, both widths included, for a config as the device computes it."""
    return config.integer("BLOCK_SIZE_N") + config.integer("BLOCK_SIZE_N_REST")


def warpgroups(config: Config) -> int:
    """Number of multiplying warpgroups."""
    return max(1, config.integer("num_warps") // 4)


def tiles(config: Config, problem: Problem) -> int:
    """Tiles of the output, for a config and a problem as the device computes them."""
    return -(-problem.m // config.integer("BLOCK_SIZE_M")) * -(-problem.n // width(config))


def sum_parts(config: Config, problem: Problem) -> int:
    """In how many parts a program sums; with exchanged operands it sums whole."""
    return 1 if config.get("SWAP_AB", False) else family_parts(problem)


def held_sums(config: Config, problem: Problem) -> float:
    """Registers of a multiplying thread for sums, and for a step's products or a part's sums if it adds these up."""
    sums = config.integer("BLOCK_SIZE_M") * width(config) / (128 * warpgroups(config))
    return 2 * sums if by_steps(problem) or sum_parts(config, problem) > 1 else sums


def held_operand(config: Config, problem: Problem) -> float:
    """Registers of a multiplying thread for A where these feed it: a step's, or three if they are loaded ahead."""
    if not tile_resources.through_registers(problem):
        return 0
    each = config.integer("BLOCK_SIZE_M") * config.integer("BLOCK_SIZE_K") / (128 * warpgroups(config))
    return 3 * each if products.loads_ahead(Sides.of(config)) else each


def resident(config: Config, problem: Problem, device: Device) -> int:
    """Programs that are resident on a multiprocessor: two with one multiplying warpgroup each if both rings fit."""
    twice = 2 * (shared_bytes(config, problem, device) + 1024) <= device.shared_bytes + 1024
    return 2 if twice and warpgroups(config) == 1 else 1


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:  # noqa: ARG001
    """An upper bound on a block's shared memory: the ring, its barriers, and the buffers through which C is stored."""
    config, problem = as_computed(config, problem)
    stages, parts = config.integer("num_stages"), config.integer("EPILOGUE_PARTS", 1)
    part, rest = config.integer("BLOCK_SIZE_N") // parts, config.integer("BLOCK_SIZE_N_REST")
    # As in `output.turns_of`, a second width equal to a part's uses that part's buffer.
    stored = part if part == rest else part * min(2, parts) + rest
    out_bytes = config.integer("BLOCK_SIZE_M") * stored * dtype.ITEMSIZE[problem.out_dtype]
    cluster_bytes = cluster_sizes.RESERVED_BYTES if refinements.NUM_CTAS in config else 0
    return stages * (stage_bytes(config, problem) + 16) + out_bytes + OTHER_BYTES + cluster_bytes


def stage_bytes(config: Config, problem: Problem) -> int:
    """Bytes of one stage of the ring, for a config and a problem as the device computes them."""
    rows = config.integer("BLOCK_SIZE_M") + width(config)
    return rows * config.integer("BLOCK_SIZE_K") * dtype.ITEMSIZE[problem.a_dtype]


def elsewhere(device: Device) -> str | None:
    """Why kernels in Gluon do not run on a device, or None."""
    if device.is_interpreter:
        return "Gluon has no interpreter"
    return None if device.features.wgmma else f"no {device.arch}: it is written for Hopper's wgmma"
