"""What a config of `warp_specialized` takes: its tile as the device computes it, registers, shared memory, programs."""

from __future__ import annotations

import functools

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gemm.hopper import cluster_sizes
from tuner.kernels.space import refinements
from tuner.problem import Problem, dtype

_OTHER_BYTES = 256
"""Barriers aside, what Triton hands from warp to warp in shared memory."""


@functools.lru_cache(maxsize=1024)
def by_steps(problem: Problem) -> bool:
    """Whether every step's products are added in registers: to scale them, or as fp8 without fast accumulation asks."""
    return problem.scaling == "block" or (dtype.is_fp8(problem.a_dtype) and not problem.fast_accum)


def as_computed(config: Config, problem: Problem) -> tuple[Config, Problem]:
    """A config and its problem as the device computes them: with SWAP_AB, those of the transposed output."""
    if not config.get("SWAP_AB", False):
        return config, problem
    swapped = config.replace(BLOCK_SIZE_M=config["BLOCK_SIZE_N"], BLOCK_SIZE_N=config["BLOCK_SIZE_M"])
    return swapped, exchanged(problem)


def width(config: Config) -> int:
    """Columns of a tile as the device computes it."""
    return config.integer("BLOCK_SIZE_N") + config.integer("BLOCK_SIZE_N_REST")


def warpgroups(config: Config) -> int:
    """Warpgroups that multiply."""
    return max(1, config.integer("num_warps") // 4)


def tiles(config: Config, problem: Problem) -> int:
    """Tiles of the output, for a config and a problem as the device computes them."""
    return -(-problem.m // config.integer("BLOCK_SIZE_M")) * -(-problem.n // width(config))


def held_sums(config: Config, problem: Problem) -> float:
    """Registers of a multiplying thread for sums, and for products that are added to them by steps."""
    sums = config.integer("BLOCK_SIZE_M") * width(config) / (128 * warpgroups(config))
    return 2 * sums if by_steps(problem) else sums


def resident(config: Config, problem: Problem, device: Device) -> int:
    """Programs on a multiprocessor at once: two of one multiplying warpgroup where both rings fit."""
    twice = 2 * (shared_bytes(config, problem, device) + 1024) <= device.shared_bytes + 1024
    return 2 if twice and warpgroups(config) == 1 else 1


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:  # noqa: ARG001
    """Shared memory of one block, an upper bound: the ring, its barriers, each warpgroup's part of C on its way out."""
    config, problem = as_computed(config, problem)
    stages, parts = config.integer("num_stages"), config.integer("EPILOGUE_PARTS", 1)
    part, rest = config.integer("BLOCK_SIZE_N") // parts, config.integer("BLOCK_SIZE_N_REST")
    # As `warp_specialized_output` has them: a rest that is as wide as a part goes out by its buffer.
    stored = part if part == rest else part * min(2, parts) + rest
    out_bytes = config.integer("BLOCK_SIZE_M") * stored * dtype.ITEMSIZE[problem.out_dtype]
    cluster_bytes = cluster_sizes.RESERVED_BYTES if refinements.NUM_CTAS in config else 0
    return stages * (stage_bytes(config, problem) + 16) + out_bytes + _OTHER_BYTES + cluster_bytes


def stage_bytes(config: Config, problem: Problem) -> int:
    """Bytes of one stage of the ring, for a config and a problem as the device computes them."""
    rows = config.integer("BLOCK_SIZE_M") + width(config)
    return rows * config.integer("BLOCK_SIZE_K") * dtype.ITEMSIZE[problem.a_dtype]
