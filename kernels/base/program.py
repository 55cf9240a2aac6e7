"""A kernel's program, and what every KernelSpec makes of one: it is launched, interpreted, compiled, told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton

from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernels.base import blocks
from tuner.launch import launch as launching
from tuner.launch.launch import Launch
from tuner.problem import Problem

Program = Callable[[Any, Config], Sequence[Launch]]
"""The launches that write an operation's output, in order."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What all kernels of an op share: its operands are of one type for all of them.

    Attributes:
        name: of the op.
        make_inputs: see `KernelSpec`; on "meta" tensors without memory.
        vendor, reference, tolerance, flops, bytes_moved: see `KernelSpec`.
        launch_interpreted: runs a launch of inputs where the interpreter alone would be wrong.
    """

    name: str
    make_inputs: Callable[[Problem, str, int], Any]
    vendor: Callable[[Any], None]
    reference: Callable[[Any], torch.Tensor]
    launch_interpreted: Callable[[Any, Config, Callable[[Any, Config], None]], None]
    tolerance: Callable[[Problem], float]
    flops: Callable[[Problem], int] = lambda problem: problem.flops
    bytes_moved: Callable[[Problem], int] = lambda problem: problem.bytes_moved


def spec_of(
    operation: Operation, name: str, version: int, program: Program, *, sources: Sequence[Any], **fields: Any
) -> KernelSpec:
    """The KernelSpec of a program.

    Args:
        operation: the op.
        name: of the kernel.
        version: raise it when timings of the version before no longer speak for this one
            (tests/unit/test_kernel_sources.py).
        program: the kernel's launches.
        sources: modules and functions that decide its timings: the jit functions, and what the host passes them.
        fields: all other fields of the KernelSpec.
    """

    def run(inputs: Any, config: Config) -> None:
        launching.run(program(inputs, config))

    def launch(inputs: Any, config: Config) -> None:
        if interpreted():
            operation.launch_interpreted(inputs, config, run)
        else:
            run(inputs, config)

    def shaped(problem: Problem, config: Config) -> Sequence[Launch]:
        """The launches on contiguous operands without memory."""
        return program(operation.make_inputs(problem, "meta", 0), config)

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


def interpreted() -> bool:
    """Whether this process's jit functions run under Triton's interpreter."""
    return not isinstance(blocks.grouped, triton.JITFunction)
