"""The child's side of a pool that compiles: what it does first, how it compiles one config, and what comes of that."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import in_short
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Resources, State
from tuner.sweep import process
from tuner.sweep.binary_resources import program, read_resources
from tuner.sweep.child import IMPORT_LIMIT_S
from tuner.sweep.host_errors import host_error_in


@dataclass(frozen=True, slots=True)
class Compiled:
    """A config that compiled.

    Attributes:
        resources: registers, spills and shared memory.
        program: a digest that is equal for configs whose binaries and launch shapes are the same.
    """

    resources: Resources
    program: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A config that did not compile, and why."""

    state: State
    message: str


CompileResult = Compiled | Failed


def compile_config(op: str, kernel: str, problem: Problem, config: Config) -> CompileResult:
    """Compile one config for the active driver's target. It runs in a child.

    Raises:
        OSError: the machine failed, and not the compile; see `host_error_in`.
    """
    from tuner.launch.plan import recorded  # it needs torch, which the parent may do without

    process.clear_output()
    start = time.perf_counter()
    try:
        with recorded() as seen:
            compiled = registry.find(op, kernel, problem.source).compile(problem, config)
        compile_ms = (time.perf_counter() - start) * 1e3
        # Configs whose largest launches agree may differ in others.
        launched = [each for _, each in seen.launches] or [compiled]
        return Compiled(read_resources(compiled, compile_ms), program(*launched))
    except Exception as e:  # noqa: BLE001  the boundary of a child process: whatever the compiler raised is the result
        if (host_error := host_error_in(e)) is not None:
            raise host_error from None
        return Failed(State.COMPILE_ERROR, in_short(e))


def start(arch: str, log_folder: str, path: list[str], kernels: tuple[str, ...]) -> None:
    """Make this process a child of the pool: what it prints goes into a file named by its process id.

    Args:
        arch: the architecture to compile for, as "sm_90".
        log_folder: where that file is.
        path: the parent's `sys.path`.
        kernels: the kernels that the parent named by module (`registry.references`).
    """
    process.die_with_parent()
    sys.path[:] = path
    process.redirect_output(Path(log_folder) / f"{os.getpid()}.log")
    from tuner.sweep import cross_target

    cross_target.activate(arch)
    signal.alarm(int(IMPORT_LIMIT_S))  # a module that hangs here ends this process
    registry.load(kernels)
    signal.alarm(0)
    registry.specs()  # imports the kernels before the first compile
