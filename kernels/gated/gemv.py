"""The `gated_gemv` kernel for M from 1 to 4, whose time is that of reading both weights."""

from __future__ import annotations

from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base import blocks, epilogue
from tuner.kernels.base.program import spec_of
from tuner.kernels.cost import stream as stream_cost
from tuner.kernels.gated import gemv_jit, launches
from tuner.kernels.gated.launches import GATED_LINEAR
from tuner.kernels.gated.operands import GatedOperands, product
from tuner.kernels.gated.space import GEMV, gemv, supports_gemv
from tuner.kernels.gemm.spec import simplicity
from tuner.launch.launch import Launch
from tuner.problem import Problem

VERSION = 1
_FOLDED = 8
"""The most neighbouring products of a row that a thread adds into one register, as in `gemv`."""


def program(operands: GatedOperands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    view = launches.view_of(operands)
    grid, _, constants, options = _parts(view, config)
    return (Launch(gemv_jit.gated_gemv_kernel, grid, launches.arguments_of(operands, view), constants, options),)


def _own(view: launches.View, config: Config) -> dict[str, Any]:
    return {"FOLD": min(view.vector_k, config.integer("BLOCK_SIZE_K"), _FOLDED)}


_parts = launches.parts_of(gemv_jit.gated_gemv_kernel, _own)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The estimate of a stream of both weights."""
    return stream_cost.streamed(config, product(problem), device)


def default_config(problem: Problem, device: Device) -> Config:
    """The config with the least estimated time."""
    tried = gemv(problem, device)
    return tried.best(lambda config: estimate_us(config, problem, device)) or tried.smallest()


SPEC = spec_of(
    GATED_LINEAR,
    GEMV,
    VERSION,
    program,
    supports=supports_gemv,
    space=gemv,
    default_config=default_config,
    estimate_us=estimate_us,
    sources=(gemv_jit, launches, program, _own, blocks, epilogue),
    simplicity=simplicity,
    # One row leaves fifteen sixteenths of a matrix instruction empty.
    precedence=lambda problem, _device: 2 if problem.m == 1 else 0,
)
