"""A kernel's program, and what every KernelSpec makes of one: it is launched, interpreted, compiled, told apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton

from tuner.config import Config
from tuner.kernel import KernelSpec
from tuner.kernels import blocks, launching
from tuner.kernels.launching import Launch
from tuner.problem import Problem

Program = Callable[[Any, Config], Sequence[Launch]]
"""The launches that write an operation's output, in order."""


def spec_of(
    program: Program,
    *,
    make_inputs: Callable[[Problem, str, int], Any],
    launch_interpreted: Callable[[Any, Config, Callable[[Any, Config], None]], None],
    sources: Sequence[Any],
    **fields: Any,
) -> KernelSpec:
    """The KernelSpec of a program.

    Args:
        program: the kernel's launches.
        make_inputs: see `KernelSpec`; on "meta" tensors without memory.
        launch_interpreted: runs a launch of inputs where the interpreter alone would be wrong.
        sources: modules and functions that decide its timings: the jit functions, and what the host passes them.
        fields: all other fields of the KernelSpec.
    """

    def run(inputs: Any, config: Config) -> None:
        launching.run(program(inputs, config))

    def launch(inputs: Any, config: Config) -> None:
        if interpreted():
            launch_interpreted(inputs, config, run)
        else:
            run(inputs, config)

    def shaped(problem: Problem, config: Config) -> Sequence[Launch]:
        """The launches on contiguous operands without memory."""
        return program(make_inputs(problem, "meta", 0), config)

    return KernelSpec(
        make_inputs=make_inputs,
        launch=launch,
        compile=lambda problem, config: launching.compile_launches(shaped(problem, config)),
        compile_class=lambda problem, config: launching.binary_class(shaped(problem, config)),
        source_hash=lambda: launching.source_hash(sources),
        **fields,
    )


def interpreted() -> bool:
    """Whether this process's jit functions run under Triton's interpreter."""
    return not isinstance(blocks.grouped, triton.JITFunction)
