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
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.hopper import cluster as warp_specialized_cluster
from tuner.kernels.gemm.hopper import cluster_k_jit, cluster_parts
from tuner.kernels.gemm.hopper import cluster_k_space as spaces
from tuner.kernels.gemm.hopper.cluster_k_space import NAME, shared_bytes, space, supports
from tuner.kernels.gemm.hopper.warp_specialized import laid_out
from tuner.kernels.gemm.small_m import swap_ab
from tuner.kernels.gemm.spec import gemm_spec, sources_of
from tuner.kernels.gemm.tma.spec import descriptor
from tuner.launch.launch import Launch, compiler_options
from tuner.problem import Problem

VERSION = 2


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    swapped = operands.exchanged()
    a, b, out = swapped.a, swapped.b, swapped.out
    block_m, block_n, block_k = (config.integer(name) for name in ("BLOCK_SIZE_N", "BLOCK_SIZE_M", "BLOCK_SIZE_K"))
    blocks = config.integer("SPLIT_K")
    stored = placement(out)
    constants, options = _static(
        swapped.problem,
        config,
        (placement(a).transposed, placement(b).transposed),
        stored.vector if stored.transposed else 1,
    )
    ahead = a if constants["PREFETCH"] else None
    arguments = (
        laid_out(a, block_m, block_k, blocks),
        laid_out(b, block_k, block_n, blocks),
        ahead,
        out,
        swapped.bias,
        swapped.scale_a,
        swapped.scale_b,
        a.shape[0],
        b.shape[1],
        a.shape[1],
        None if ahead is None else ahead.stride(0),
        *out.stride(),
    )
    grid = (-(-a.shape[0] // block_m) * -(-b.shape[1] // block_n),)
    return (Launch(cluster_k_jit.cluster_k_kernel, grid, arguments, constants, options),)


@functools.lru_cache(maxsize=4096)
def _static(
    problem: Problem, config: Config, transposed: tuple[bool, bool], vector: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Constexprs and compiler options."""
    constants = {
        "BLOCK_SIZE_M": config.integer("BLOCK_SIZE_N"),
        "BLOCK_SIZE_N": config.integer("BLOCK_SIZE_M"),
        "BLOCK_SIZE_K": config.integer("BLOCK_SIZE_K"),
        "STAGES": config.integer("num_stages"),
        **dict(zip(("A_TRANSPOSED", "B_TRANSPOSED"), transposed, strict=True)),
        "C_VECTOR": vector,
        "BY_STEPS": spaces.by_steps(problem),
        "BIAS_ALONG_M": True,
        "SCALING": problem.scaling,
        "ACTIVATION": problem.activation,
        **launches.overlap_constants(config),
    }
    options = {**compiler_options(config), "num_ctas": config.integer("SPLIT_K")}
    del options["num_stages"]
    return constants, options


def terms(config: Config, problem: Problem, device: Device) -> Terms:
    """The cost model's terms of what the device computes."""
    return cost.terms(*swap_ab.view(config, problem), device, LOOP)


LOOP = Loop(by_tma=True, in_cluster=True, exchanged=True)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate, calibrated."""
    return _estimates((config,), problem, device)[config]


def _estimates(configs: Iterable[Config], problem: Problem, device: Device) -> dict[Config, float]:
    return swap_ab.corrected({config: terms(config, problem, device) for config in configs}, problem, device)


def default_config(problem: Problem, device: Device) -> Config:
    """The config with the least estimated time, refined by its options; of equals the one with the smallest cluster."""
    tried = space(problem, device)

    def estimated(config: Config) -> float:
        return estimate_us(config, problem, device)

    def ties(config: Config) -> tuple[int, ...]:
        return config.integer("SPLIT_K"), -config.integer("BLOCK_SIZE_K")

    found = tried.best(estimated, ties=ties, among=_estimates(tried.programs(), problem, device))
    return tried.smallest() if found is None else tried.refined(found, estimated)


SOURCES = (
    *sources_of(cluster_k_jit, cluster_parts, warp_specialized_cluster, program, _static),
    laid_out,
    descriptor,
    placement,
)

SPEC = gemm_spec(
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
)
