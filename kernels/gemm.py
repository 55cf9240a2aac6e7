"""What all GEMM kernels have in common, and the KernelSpec made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tuner.config import Config
from tuner.device import Device
from tuner.kernel import KernelSpec
from tuner.kernels import blocks, epilogue, numerics
from tuner.kernels.interpreted import launch_interpreted
from tuner.kernels.operands import make_operands
from tuner.kernels.programs import Program, spec_of
from tuner.kernels.vendor import vendor
from tuner.problem import Problem
from tuner.space import SearchSpace


@dataclass(frozen=True, slots=True)
class Operation:
    """What all kernels of an op share; the operands are of one type for all of them.

    Attributes:
        name: of the op.
        make_operands, vendor, reference: see `KernelSpec`.
        launch_interpreted: runs a launch of operands where the interpreter alone would be wrong.
    """

    name: str
    make_operands: Callable[[Problem, str, int], Any]
    vendor: Callable[[Any], None]
    reference: Callable[[Any], torch.Tensor] = numerics.reference
    launch_interpreted: Callable[[Any, Config, Callable[[Any, Config], None]], None] = launch_interpreted


MATMUL = Operation("matmul", make_operands, vendor)


def gemm_spec(
    name: str,
    version: int,
    program: Program,
    *,
    supports: Callable[[Problem, Device], str | None],
    space: Callable[[Problem, Device], SearchSpace],
    default_config: Callable[[Problem, Device], Config],
    sources: Sequence[Any],
    shared_bytes: Callable[[Config, Problem, Device], int] | None = None,
    estimate_us: Callable[[Config, Problem, Device], float] | None = None,
    runtime_parameters: tuple[str, ...] = ("GROUP_SIZE_M",),
    precedence: Callable[[Problem, Device], int] = lambda _problem, _device: 0,
    operation: Operation = MATMUL,
) -> KernelSpec:
    """A kernel of an op whose products are GEMMs.

    Args:
        name: of the kernel.
        version: raise it when timings of the version before no longer speak for this one
            (tests/unit/test_kernel_sources.py).
        program: its launches; the last one is the GEMM.
        supports, space, default_config, shared_bytes, estimate_us, runtime_parameters, precedence: see `KernelSpec`.
        sources: modules and functions that decide its timings: the jit functions, and what the host passes them.
        operation: the op.
    """

    return spec_of(
        program,
        make_inputs=operation.make_operands,
        launch_interpreted=operation.launch_interpreted,
        sources=sources,
        op=operation.name,
        name=name,
        version=version,
        supports=supports,
        space=space,
        default_config=default_config,
        vendor=operation.vendor,
        reference=operation.reference,
        tolerance=numerics.tolerance,
        simplicity=simplicity,
        shared_bytes=shared_bytes,
        estimate_us=estimate_us,
        runtime_parameters=runtime_parameters,
        precedence=precedence,
    )


def simplicity(config: Config) -> tuple[Any, ...]:
    """Sorts configs from simplest: the sum least split, least in flight, fewest threads, row-major, fewest options."""
    rows = config.integer("BLOCK_SIZE_M") + config.integer("BLOCK_SIZE_N") + config.integer("BLOCK_SIZE_N_REST")
    held = rows * config.integer("BLOCK_SIZE_K") * config.integer("num_stages", 1)
    return (
        config.integer("SPLIT_K", 1),
        held,
        config.integer("num_warps"),
        config.integer("GROUP_SIZE_M"),
        len(config),
        config,
    )


def epilogue_constants(problem: Problem, block_size_k: int) -> dict[str, Any]:
    """The constexprs of the multiplication and of `epilogue.finish`, but for where the bias runs."""
    return {
        "SCALING": problem.scaling,
        "ACTIVATION": problem.activation,
        "PRECISION": "ieee" if problem.precision == "default" else problem.precision,
        "MAX_IMPRECISE": numerics.max_imprecise(problem, block_size_k),
    }


def sources_of(*parts: Any) -> tuple[Any, ...]:
    """The given sources, and those that all GEMM kernels rest on."""
    return (*parts, blocks, epilogue, epilogue_constants, numerics.max_imprecise)
