"""The `any_height` kernel: `any_width` with exchanged operands. For Hopper, in Gluon.

The device computes the transposed output: B's columns are the rows that wgmma wants 64 of, and rows of A are one
wgmma's columns. Of few rows that is all of them, or half: a tile takes in hardly more of A than there is, and where a
cluster's blocks lie along N, they share its loads. Of many it is the number that fills the device's waves best.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands, exchanged
from tuner.kernels.cost import tile
from tuner.kernels.gemm.hopper import any_width
from tuner.kernels.gemm.hopper.any_height_space import NAME, as_computed, for_many_rows, shared_bytes, space, supports
from tuner.kernels.gemm.hopper.any_width_space import NAME as ANY_WIDTH
from tuner.kernels.gemm.hopper.any_width_space import in_halves
from tuner.kernels.gemm.hopper.cluster_sizes import clusters_at_once
from tuner.kernels.gemm.hopper.resources import tiles
from tuner.kernels.gemm.spec import MATMUL, gemm_spec
from tuner.kernels.space.refinements import NUM_CTAS
from tuner.launch.launch import Launch
from tuner.problem import Problem, dtype

VERSION = 1


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    return any_width.launched(operands.exchanged(), as_computed(config), exchanged=True)


class Constants(NamedTuple):
    """What `modelled_us` is fitted by (benchmarks/fit/any_height.py).

    Attributes:
        l2_bytes: bytes a cycle that the L2 sends a multiprocessor, those for a whole cluster counted once.
        operand_cycles: cycles of a wgmma beside a quarter of one for each of its columns.
        shared_bytes: bytes a cycle that shared memory takes in and gives to the tensor cores, of both together.
        latency: cycles from a load to its data.
        start_us: first loads and last stores.

    They are fitted together, and none of them is what the hardware's documents say.
    """

    l2_bytes: float
    operand_cycles: float
    shared_bytes: float
    latency: float
    start_us: float


CONSTANTS = Constants(l2_bytes=100.4, operand_cycles=5.9, shared_bytes=348.0, latency=1178.0, start_us=2.62)


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
        config: found[computed[config]] if config in computed else modelled_us(config, problem, device, CONSTANTS)
        for config in listed
    }


def modelled_us(config: Config, problem: Problem, device: Device, by: Constants) -> float:
    """How long a config takes that has all of few rows of A, or half, microseconds.

    A step along K takes as long as the L2, the tensor cores, shared memory or a ring of this depth needs for it; and
    the steps of a wave of tiles overlap with device memory, the less the more alike both are. The last wave may have
    few tiles.
    """
    inner = as_computed(config)
    rows, columns, length = (inner.integer(f"BLOCK_SIZE_{side}") for side in "MNK")
    ctas, count = config.integer(NUM_CTAS, 1), tiles(config, problem)
    at_once = ctas * clusters_at_once(ctas, device.sm_count)
    itemsize = dtype.ITEMSIZE[problem.a_dtype]
    loaded = (rows + columns / ctas) * length * itemsize
    times, wgmmas = rows / 64 * (length / 16), 2 if in_halves(inner) else 1
    multiplied = times * (wgmmas * by.operand_cycles + columns / 4)
    moved = times * (wgmmas * 64 + columns) * 16 * itemsize + (rows + columns) * length * itemsize
    awaited = by.latency / max(1, config.integer("num_stages") - 2)  # a stage is free when the next one is multiplied
    memory_us = problem.bytes_moved / tile.memory_bytes_per_us(device)

    def wave_us(running: int) -> float:
        waits = running / device.sm_count * loaded / by.l2_bytes, multiplied, moved / by.shared_bytes, awaited
        cycles = -(-problem.k // length) * _norm(waits, 3)
        return _norm((cycles / device.sustained_mhz, memory_us * running / count), 2)

    full, rest = divmod(count, at_once)
    return by.start_us + full * wave_us(at_once) + (wave_us(rest) if rest else 0)


def _norm(values: tuple[float, ...], p: int) -> float:
    total: float = sum(value**p for value in values) ** (1 / p)
    return total


def ties(config: Config) -> int:
    """Of equal estimates the narrowest groups come first."""
    return config.integer("GROUP_SIZE_M")


_SPEC = gemm_spec(
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
    order=any_width.order,
    exchanges=True,
)


def _compiled(problem: Problem, config: Config) -> object:
    return any_width.checked(_SPEC.compile(problem, config), as_computed(config))


SPEC = dataclasses.replace(_SPEC, compile=_compiled)
