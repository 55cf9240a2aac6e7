"""Compile one config in a child process and bring back every form that the compiler gave it."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tuner.errors import KernelError, in_short
from tuner.hardware.device import Device
from tuner.inspection.occupancy import Occupancy, occupancy
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.sweep import cross_target, process
from tuner.sweep.binary_resources import read_resources
from tuner.sweep.compile_pool import TIME_LIMIT_S
from tuner.sweep.host_errors import host_error_in, why_uncompiled

STAGES = {
    "nvidia": ("ttir", "ttgir", "llir", "ptx", "sass"),
    "amd": ("ttir", "ttgir", "llir", "amdgcn"),
}
"""Forms of a binary that can be read, in the order they are made, by vendor."""
_TEXTS = ("ttir", "ttgir", "llir", "ptx", "amdgcn")
_READY = "ready"
_START_S = 60.0
"""Importing torch and Triton, on a cold disk: it does not count against a compile."""


@dataclass(frozen=True, slots=True)
class Binary:
    """What became of one config.

    Attributes:
        config: the config that was compiled.
        arch: the target.
        stages: text by stage, see `STAGES`.
        num_warps, num_stages, num_ctas: as the compiler has them.
        shared_bytes: shared memory of a block.
        registers, spill_bytes: what a thread takes; None where it cannot be read (no cuobjdump).
        compile_ms: wall time of the compile.
        occupancy: blocks on a multiprocessor; None for an arch that nobody described.
    """

    config: Config
    arch: str
    stages: Mapping[str, str]
    num_warps: int
    num_stages: int
    num_ctas: int
    shared_bytes: int
    registers: int | None
    spill_bytes: int | None
    compile_ms: float
    occupancy: Occupancy | None

    def facts(self) -> dict[str, Any]:
        """Everything but the stages, in the form that JSON holds."""
        document = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "stages"}
        seen = self.occupancy
        limits = {} if seen is None else dataclasses.asdict(seen) | {"limits": seen.limits}
        return document | {"kernel": self.config.kernel, "config": dict(self.config), "occupancy": limits or None}


def compile_binary(problem: Problem, config: Config, device: Device, *, time_limit_s: float = TIME_LIMIT_S) -> Binary:
    """Compile a config for a device that need not be here. Where a kernel launches several binaries, it is the last.

    Raises:
        KernelError: it does not compile: what the compiler said, or how it died, in one line.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with process.scratch_folder() as folder, ours:
        log = Path(folder) / "output"
        kernels = registry.references()
        child = context.Process(target=_serve, args=(theirs, str(log), device.arch, kernels, (problem, config)))
        with process.interrupts_blocked():
            child.start()
        theirs.close()
        try:
            found = ours.recv() if ours.poll(_START_S) else None
            if found == _READY:
                found = ours.recv() if ours.poll(time_limit_s) else None
        except EOFError:
            child.join()
            found = f"compiler died with {process.describe_exit(child.exitcode)}{process.last_output_line(log)}"
        finally:
            child.kill()
            child.join()
    if isinstance(found, Binary):
        return found
    raise KernelError(f"{config} for {device.arch}: {found or f'compile took more than {time_limit_s:g} s'}")


def _serve(
    connection: Connection, log: str, arch: str, references: Sequence[str], task: tuple[Problem, Config]
) -> None:
    """Run in the child: say when all is imported, then send the binary, or in one line why there is none."""
    problem, config = task
    process.die_with_parent()
    process.redirect_output(Path(log))
    os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported, which has not happened yet
    try:
        cross_target.activate(arch)
        registry.load(references)
        spec = registry.find(problem.op, config.kernel, problem.source)
        connection.send(_READY)
        connection.send(_compiled(spec, problem, config, arch))
    except Exception as e:  # noqa: BLE001  the boundary of a child process: whatever the compiler raised is the result
        host_error = host_error_in(e)
        connection.send(in_short(e) if host_error is None else why_uncompiled(host_error))


def _compiled(spec: KernelSpec, problem: Problem, config: Config, arch: str) -> Binary:
    start = time.perf_counter()
    compiled = spec.compile(problem, config)
    resources = read_resources(compiled, (time.perf_counter() - start) * 1e3)
    stages = {name: _text(compiled.asm[name]) for name in _TEXTS if name in compiled.asm}
    if sass := _sass(compiled):
        stages["sass"] = sass
    num_warps = int(compiled.metadata.num_warps)
    registers, shared_bytes = resources.registers, resources.shared_bytes or 0
    return Binary(
        config,
        arch,
        stages,
        num_warps=num_warps,
        num_stages=int(getattr(compiled.metadata, "num_stages", 0)),
        num_ctas=int(getattr(compiled.metadata, "num_ctas", 1)),
        shared_bytes=shared_bytes,
        registers=registers,
        spill_bytes=resources.spill_bytes,
        compile_ms=resources.compile_ms or 0.0,
        occupancy=occupancy(arch, num_warps=num_warps, registers=registers, shared_bytes=shared_bytes),
    )


def _text(stage: Any) -> str:
    return stage.decode(errors="replace") if isinstance(stage, bytes) else str(stage)


def _sass(compiled: Any) -> str | None:
    """The machine code as cuobjdump writes it, None without one."""
    if "cubin" not in compiled.asm:
        return None
    try:
        return str(compiled.asm["sass"])
    except (OSError, RuntimeError, KeyError, ValueError):
        # The disassembler is no part of every wheel; without it the other stages are there all the same.
        return None
