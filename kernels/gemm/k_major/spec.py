"""The `k_major` kernel, which copies operands so that they run along K before another kernel multiplies.

wgmma reads operands of 8 and 32 bits only along K. Kernels that load others as they are stored turn them in registers,
or multiply by the slower `mma.sync`. A config names the kernel that multiplies (INNER) and has all of its parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tuner.hardware.device import Device
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import Operands
from tuner.kernels.base.program import Program
from tuner.kernels.cost.tile import memory_bytes_per_us
from tuner.kernels.gemm import calibrated
from tuner.kernels.gemm.hopper import ping_pong, warp_specialized
from tuner.kernels.gemm.k_major import copy as copying
from tuner.kernels.gemm.k_major import copy_jit
from tuner.kernels.gemm.k_major.problem import computed, is_copied, refused
from tuner.kernels.gemm.small_m import split_k
from tuner.kernels.gemm.spec import MATMUL, gemm_spec
from tuner.kernels.gemm.tma import spec as tma
from tuner.kernels.space.rule import rule
from tuner.launch.launch import Launch
from tuner.problem import Problem, dtype

NAME = "k_major"
VERSION = 1


class Inner(NamedTuple):
    """A kernel that may multiply: its description, its launches and its estimates."""

    spec: KernelSpec
    program: Program[Operands]
    estimate_us: Callable[[Config, Problem, Device], float]


_INNER = {
    one.spec.name: one
    for one in (
        Inner(warp_specialized.SPEC, warp_specialized.program, warp_specialized.estimate_us),
        Inner(ping_pong.SPEC, ping_pong.program, ping_pong.estimate_us),
        Inner(split_k.SPEC, split_k.program, calibrated.estimate_us),
    )
}
"""The kernels that may multiply, by the values of INNER. Configs of `split_k` must load by TMA."""
_COPY_US, _COPY_SHARE = 1.0, 0.85
"""Launch and tail of a copy, as of `padded`, and its share of the memory's bandwidth (`copy._TILES`)."""


def program(operands: Operands, config: Config) -> tuple[Launch, ...]:
    """The launch that copies, if anything must be copied, and that of the inner kernel."""
    turned, copies = copying.along_k(operands)
    return (*copies, *_INNER[str(config["INNER"])].program(turned, _inner(config)))


@functools.lru_cache(maxsize=65536)
def _inner(config: Config) -> Config:
    """The inner kernel's own config."""
    return Config(str(config["INNER"]), **{name: value for name, value in config.pairs if name != "INNER"})


def _outer(inner: Config) -> Config:
    return Config(NAME, **dict(inner.pairs), INNER=inner.kernel)


@functools.lru_cache(maxsize=1024)
def _reasons(problem: Problem, device: Device) -> dict[str, str | None]:
    """Why each inner kernel cannot serve a problem once its operands run along K, or None if it can."""
    return {name: one.spec.unserved(computed(problem), device) for name, one in _INNER.items()}


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := refused(problem, device):
        return reason
    reasons = _reasons(problem, device)
    return None if None in reasons.values() else "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space: the inner kernels' spaces."""
    kernels = tuple(name for name, reason in _reasons(problem, device).items() if reason is None)
    options = tuple(sorted({option for name in kernels for option in _inner_space(name, problem, device).options}))
    return SearchSpace(NAME, problem, device, {"INNER": kernels}, RULES, _canonical, _expand, options, _refine)


def default_config(problem: Problem, device: Device) -> Config:
    """Of the inner kernels' defaults the one with the least estimated time."""
    inner = computed(problem)
    able = [name for name, reason in _reasons(problem, device).items() if reason is None]
    proposed = [config for name in able if (config := _proposed(name, problem, device)) is not None]
    return _outer(min(proposed, key=lambda one: _INNER[one.kernel].estimate_us(one, inner, device)))


def _proposed(name: str, problem: Problem, device: Device) -> Config | None:
    inner = computed(problem)
    config = _INNER[name].spec.default_config(inner, device)
    if config.get("LOADS", "tma") == "tma":
        return config
    by_tma = _inner_space(name, problem, device)
    return by_tma.best(lambda one: _INNER[name].estimate_us(one, inner, device))


def _inner_space(name: str, problem: Problem, device: Device) -> SearchSpace:
    return _INNER[name].spec.space(computed(problem), device).narrowed(LOADS=("tma",))


@functools.lru_cache(maxsize=16)
def _inner_configs(name: str, problem: Problem, device: Device) -> list[Config]:
    return _inner_space(name, problem, device).configs()


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    yield from map(_outer, _inner_configs(str(config["INNER"]), problem, device))


def _refine(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    inner = _inner(config)
    yield from map(_outer, _inner_space(inner.kernel, problem, device).refinements(inner))


def _canonical(config: Config, problem: Problem, device: Device) -> Config:
    return _outer(_inner_space(str(config["INNER"]), problem, device).canonicalize(_inner(config)))


def _shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of the inner kernel, an upper bound; the copy takes less."""
    spec = _INNER[str(config["INNER"])].spec
    assert spec.shared_bytes is not None
    return spec.shared_bytes(_inner(config), computed(problem), device)


def _estimate_us(config: Config, problem: Problem, device: Device) -> float:
    elements = sum(
        extent * problem.k for extent, copied in zip((problem.m, problem.n), is_copied(problem), strict=True) if copied
    )
    copy_us = _COPY_US + 2 * elements * dtype.ITEMSIZE[problem.a_dtype] / (_COPY_SHARE * memory_bytes_per_us(device))
    return copy_us + _INNER[str(config["INNER"])].estimate_us(_inner(config), computed(problem), device)


@rule("parameters", "the kernel's own", fatal=True)
def _malformed(config: Config, problem: Problem, device: Device) -> str | None:
    if config.get("INNER") not in _INNER:
        return f"INNER is {config.get('INNER')!r}: expected one of {', '.join(_INNER)}"
    if config.get("LOADS", "tma") != "tma":
        return f"LOADS is {config.get('LOADS')!r}: copies are loaded by TMA"
    return _reasons(problem, device)[str(config["INNER"])]


@rule("inner kernel", "its own rules", fatal=True)
def _inner_cannot(config: Config, problem: Problem, device: Device) -> str | None:
    return _inner_space(str(config["INNER"]), problem, device).rejection(_inner(config), fatal_only=True)


@rule("inner kernel", "its own rules")
def _inner_would_not(config: Config, problem: Problem, device: Device) -> str | None:
    return _inner_space(str(config["INNER"]), problem, device).rejection(_inner(config))


RULES = (_malformed, _inner_cannot, _inner_would_not)


SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=_shared_bytes,
    estimate_us=_estimate_us,
    sources=(
        *(copy_jit, copying, program),
        *(part for module in (warp_specialized, ping_pong, tma) for part in module.SOURCES),
    ),
    runtime_parameters=("GROUP_SIZE_M", "SPLIT_K"),
)
