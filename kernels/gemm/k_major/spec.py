"""The `k_major` kernel, which copies operands so that they run along K before another kernel multiplies.

wgmma reads operands of 8 and 32 bits in shared memory only along K. Kernels of `tl.dot` that load others as they are
stored turn them in registers, or multiply by the slower `mma.sync`. A config names the kernel that multiplies (INNER)
and has all of its parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import Operands
from tuner.kernels.gemm import calibrated
from tuner.kernels.gemm.hopper import ping_pong, warp_specialized
from tuner.kernels.gemm.inner import Inner, InnerKernels
from tuner.kernels.gemm.k_major import copy as copying
from tuner.kernels.gemm.k_major import copy_jit
from tuner.kernels.gemm.k_major.problem import computed, copy_us, is_copied, refused, refused_inner
from tuner.kernels.gemm.padded.copy import padded_rows
from tuner.kernels.gemm.small_m import split_k
from tuner.kernels.gemm.spec import MATMUL, gemm_spec
from tuner.kernels.gemm.tma import spec as tma
from tuner.launch.launch import Launch
from tuner.problem import Problem, dtype

NAME = "k_major"
VERSION = 2
_INNER = InnerKernels(
    NAME,
    {
        one.spec.name: one
        for one in (
            Inner(warp_specialized.SPEC, warp_specialized.program, warp_specialized.estimate_us),
            Inner(ping_pong.SPEC, ping_pong.program, ping_pong.estimate_us),
            Inner(split_k.SPEC, split_k.program, calibrated.estimate_us),
        )
    },
    computed,
    refused=refused_inner,
)
RULES = _INNER.rules()


def program(operands: Operands, config: Config) -> tuple[Launch, ...]:
    """The launch that copies, if anything must be copied, and that of the inner kernel."""
    turned, copies = copying.along_k(operands, str(config["INNER"]))
    return (*copies, *_INNER.program(turned, config))


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    return refused(problem, device) or _INNER.supports(problem, device)


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space: the inner kernels' spaces."""
    axes, options = {"INNER": _INNER.able(problem, device)}, _INNER.options(problem, device)
    return SearchSpace(NAME, problem, device, axes, RULES, _canonical, _expand, options, _refine)


def default_config(problem: Problem, device: Device) -> Config:
    """Of the inner kernels' defaults the one with the least estimated time."""
    found = (_proposed(name, problem, device) for name in _INNER.able(problem, device))
    proposed = [_INNER.wrapped(config) for config in found if config is not None]
    return min(proposed, key=lambda one: _INNER.estimate_us(one, problem, device))


def _proposed(name: str, problem: Problem, device: Device) -> Config | None:
    """An inner kernel's default; if that loads by pointers, the least estimated config that does not."""
    inner = computed(name, problem)
    config = _INNER.kernels[name].spec.default_config(inner, device)
    if config.get("LOADS", "tma") == "tma":
        return config
    return _INNER.space(name, problem, device).best(lambda one: _INNER.kernels[name].estimate_us(one, inner, device))


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    return map(_INNER.wrapped, _INNER.configs(str(config["INNER"]), problem, device))


def _refine(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    return map(_INNER.wrapped, _INNER.refinements(config, problem, device))


def _canonical(config: Config, problem: Problem, device: Device) -> Config:
    return _INNER.wrapped(_INNER.canonical(config, problem, device))


def _estimate_us(config: Config, problem: Problem, device: Device) -> float:
    copied = is_copied(str(config["INNER"]), problem)
    elements = problem.k * sum(itertools.compress((problem.m, problem.n), copied))
    copied_us = copy_us(elements * dtype.ITEMSIZE[problem.a_dtype], device)
    return copied_us + _INNER.estimate_us(config, problem, device)


SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=_INNER.shared_bytes,
    estimate_us=_estimate_us,
    sources=(
        *(copy_jit, copying, is_copied, padded_rows, program),
        *(part for module in (warp_specialized, ping_pong, tma) for part in module.SOURCES),
    ),
    runtime_parameters=("GROUP_SIZE_M", "SPLIT_K"),
)
