"""The `cluster_k` kernel, which splits a tile's sum over the blocks of a cluster, without use of global memory.

It is for few tiles and a long K on Hopper, written in Gluon, and needs Triton 3.7. Results are deterministic.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands, placement
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.terms import Terms
from tuner.kernels.cost.tile import Loop
from tuner.kernels.gemm import launches, sums
from tuner.kernels.gemm.hopper import cluster as warp_specialized_cluster
from tuner.kernels.gemm.hopper import cluster_k_jit, cluster_parts, register_operand
from tuner.kernels.gemm.hopper import cluster_k_space as spaces
from tuner.kernels.gemm.hopper.cluster_k_space import NAME, shared_bytes, space, supports
from tuner.kernels.gemm.hopper.warp_specialized import laid_out
from tuner.kernels.gemm.small_m import swap_ab
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.gemm.tma.spec import descriptor
from tuner.launch.launch import TILE, Launch
from tuner.problem import Problem

VERSION = 2


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    swapped = operands.exchanged()
    a, b, out = swapped.a, swapped.b, swapped.out
    blocks = config.integer("SPLIT_K")
    view = launches.view_of(swapped, exchanged=True)
    (tiles, *_), _, constants, options = _parts(view, swap_ab.exchanged_tile(config))
    block_m, block_n, block_k = (constants[name] for name in TILE)
    ahead = a if constants["PREFETCH"] else None
    arguments = (
        laid_out(a, block_m, block_k, blocks),
        laid_out(b, block_k, block_n, blocks),
        ahead,
        out,
        swapped.bias,
        swapped.scale_a,
        swapped.scale_b,
        *view.shape,
        None if ahead is None else ahead.stride(0),
        *out.stride(),
    )
    # The splits of a tile are one cluster.
    options = {**options, "num_ctas": blocks}
    del options["num_stages"]
    return (Launch(cluster_k_jit.cluster_k_kernel, (tiles,), arguments, constants, options),)


def _own(view: launches.View, _config: Config) -> dict[str, Any]:
    return {"C_VECTOR": view.vectors[2] if view.transposed[2] else 1, "BY_STEPS": spaces.by_steps(view.problem)}


_parts = launches.parts_of(cluster_k_jit.cluster_k_kernel, _own)


def terms(config: Config, problem: Problem, device: Device) -> Terms:
    """The cost model's terms of what the device computes."""
    return cost.terms(*swap_ab.view(config, problem), device, LOOP)


LOOP = Loop(by_tma=True, in_cluster=True, exchanged=True)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate, calibrated."""
    return estimates_us((config,), problem, device)[config]


def estimates_us(configs: Iterable[Config], problem: Problem, device: Device) -> dict[Config, float]:
    """The same of many configs."""
    return swap_ab.corrected({config: terms(config, problem, device) for config in configs}, problem, device)


def ties(config: Config) -> tuple[int, ...]:
    """Of equal estimates the smallest cluster comes first, and long rows."""
    return config.integer("SPLIT_K"), -config.integer("BLOCK_SIZE_K")


def default_config(problem: Problem, device: Device) -> Config:
    """The config with the least estimated time, refined by its options."""
    tried, estimated = space(problem, device), functools.partial(estimate_us, problem=problem, device=device)
    found = tried.best(estimated, ties=ties, among=estimates_us(tried.programs(), problem, device))
    return tried.smallest() if found is None else tried.refined(found, estimated)


def order(config: Config, problem: Problem, device: Device) -> sums.Order:  # noqa: ARG001
    """How a config sums: the blocks of a cluster sum a part each, by wgmma of exchanged operands."""
    return sums.by_wgmma(config, problem, config.integer("SPLIT_K"), exchanged=True)


SOURCES = (
    *sources_of(cluster_k_jit, cluster_parts, warp_specialized_cluster, register_operand, program, _own),
    laid_out,
    descriptor,
    placement,
)

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
    ties=ties,
    sources=SOURCES,
    runtime_parameters=(),
    order=order,
    exchanges=True,
)
