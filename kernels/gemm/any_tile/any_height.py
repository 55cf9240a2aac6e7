"""The `any_height` kernel: `any_width` with exchanged operands. For Hopper, in Gluon.

The device computes the transposed output: B's columns are the rows that wgmma wants 64 of, and rows of A are one
wgmma's columns. Of few rows that is all of them, or half: a tile takes in hardly more of A than there is, and where a
cluster's blocks lie along N, they share its loads. Of many it is the number that fills the device's waves best.
"""

from __future__ import annotations

from collections.abc import Iterable

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands, exchanged
from tuner.kernels.gemm.any_tile import any_width
from tuner.kernels.gemm.any_tile.any_height_space import for_many_rows, space, supports
from tuner.kernels.gemm.any_tile.any_height_tile import (
    NAME,
    as_computed,
    computed_by,
    order,
    own_estimate_us,
    shared_bytes,
)
from tuner.kernels.gemm.any_tile.any_width_space import NAME as ANY_WIDTH
from tuner.kernels.gemm.hopper import ping_pong_model
from tuner.kernels.gemm.spec import MATMUL, gemm_spec
from tuner.launch.launch import Launch
from tuner.problem import Problem

VERSION = 1


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    return any_width.launched(operands.exchanged(), as_computed(config), exchanged=True)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """How long a config takes, microseconds."""
    return estimates_us((config,), problem, device)[config]


def estimates_us(configs: Iterable[Config], problem: Problem, device: Device) -> dict[Config, float]:
    """The same of many configs: of those for many rows what `any_width` estimates of the exchanged problem, calibrated.

    Which those are a config says itself, and not the problem: so the estimates of a config for two Ms compare.
    """
    listed = list(configs)
    computed = {one: Config(ANY_WIDTH, **dict(as_computed(one).pairs)) for one in listed if for_many_rows(one)}
    found = any_width.estimates_us(computed.values(), exchanged(problem), device)
    return {
        config: found[computed[config]] * _slowed(config, problem)
        if config in computed
        else own_estimate_us(config, problem, device)
        for config in listed
    }


def _slowed(config: Config, problem: Problem) -> float:
    rows, columns = config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N")
    return ping_pong_model.slowed(columns, rows, exchanged(problem))


def ties(config: Config) -> int:
    """Of equal estimates the narrowest groups come first."""
    return config.integer("GROUP_SIZE_M")


SPEC = any_width.ring_checked(
    gemm_spec(
        MATMUL,
        NAME,
        VERSION,
        program,
        supports=supports,
        space=space,
        shared_bytes=shared_bytes,
        estimate_us=estimate_us,
        estimates_us=estimates_us,
        ties=ties,
        sources=(*any_width.SOURCES, program, as_computed),
        order=order,
        exchanges=True,
    ),
    computed_by,
)
