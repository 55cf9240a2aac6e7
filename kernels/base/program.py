"""Makes a KernelSpec from a kernel's program: how it is launched, interpreted, compiled and classed by binary."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
import triton

from tuner.kernel import Inputs, KernelSpec
from tuner.kernel.config import Config
from tuner.kernels.base import blocks
from tuner.launch import launch as launching
from tuner.launch.launch import Launch
from tuner.launch.plan import recording
from tuner.problem import Problem

Given = TypeVar("Given", bound=Inputs)
"""The type of the operands that all kernels of an op take."""
Program = Callable[[Given, Config], Sequence[Launch]]
"""A function of operands and a config that returns the launches that write the output, in order."""
LaunchInterpreted = Callable[[Given, Config, Callable[[Given, Config], None]], None]
"""Runs a launch, its last argument, under the interpreter, and corrects what the interpreter gets wrong."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[Given]):
    """What all kernels of an op share. They all take operands of one type.

    Attributes:
        name: name of the op.
        make_inputs: see `KernelSpec`; for the device "meta" it makes tensors without memory.
        vendor, reference, tolerance, flops, bytes_moved: see `KernelSpec`.
        launch_interpreted: see `LaunchInterpreted`.
    """

    name: str
    make_inputs: Callable[[Problem, str, int], Given]
    vendor: Callable[[Given], torch.Tensor | None]
    reference: Callable[[Given], torch.Tensor]
    launch_interpreted: LaunchInterpreted[Given]
    tolerance: Callable[[Problem], float]
    flops: Callable[[Problem], int] = lambda problem: problem.flops
    bytes_moved: Callable[[Problem], int] = lambda problem: problem.bytes_moved


def spec_of(
    operation: Operation[Given],
    name: str,
    version: int,
    program: Program[Given],
    *,
    sources: Sequence[Any],
    **fields: Any,
) -> KernelSpec:
    """Make the KernelSpec of a program.

    Args:
        operation: the op.
        name: name of the kernel.
        version: raise it when timings of the previous version are no longer valid for this one
            (tests/unit/test_kernel_sources.py).
        program: the kernel's launches.
        sources: modules and functions on which its timings depend: the jit functions, and what the host passes them.
        fields: all other fields of the KernelSpec.
    """

    def run(inputs: Given, config: Config) -> None:
        launching.run(program(inputs, config))

    def launch(inputs: Given, config: Config) -> None:
        if interpreted():
            operation.launch_interpreted(inputs, config, run)
        else:
            run(inputs, config)

    def shaped(problem: Problem, config: Config) -> Sequence[Launch]:
        """The launches on contiguous operands without memory."""
        operands = _without_memory(operation, problem)
        if (seen := recording()) is not None:
            seen.operands = operands
        return program(operands, config)

    return KernelSpec(
        op=operation.name,
        name=name,
        version=version,
        make_inputs=operation.make_inputs,
        launch=launch,
        vendor=operation.vendor,
        reference=operation.reference,
        tolerance=operation.tolerance,
        compile=lambda problem, config: launching.compile_launches(shaped(problem, config)),
        compile_class=lambda problem, config: launching.binary_class(shaped(problem, config)),
        source_hash=lambda: launching.source_hash(sources),
        flops=operation.flops,
        bytes_moved=operation.bytes_moved,
        **fields,
    )


@functools.lru_cache(maxsize=64)
def _without_memory(operation: Operation[Given], problem: Problem) -> Given:
    """A problem's operands without memory: a search classes hundreds of configs of one problem."""
    return operation.make_inputs(problem, "meta", 0)


def interpreted() -> bool:
    """Whether this process's jit functions run under Triton's interpreter."""
    return not isinstance(blocks.grouped, triton.JITFunction)
