"""Compile one config in a child process and bring back every form that the compiler gave it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.inspection.occupancy import Occupancy, occupancy
from tuner.kernel import KernelSpec, registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.sweep.compile_pool import TIME_LIMIT_S
from tuner.sweep.process import describe_exit, last_output_line, scratch_folder

STAGES = {
    "nvidia": ("ttir", "ttgir", "llir", "ptx", "sass"),
    "amd": ("ttir", "ttgir", "llir", "amdgcn"),
}
"""Forms of a binary that can be read, in the order they are made, by vendor."""
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


def compile_binary(
    spec: KernelSpec, problem: Problem, config: Config, device: Device, *, time_limit_s: float = TIME_LIMIT_S
) -> Binary:
    """Compile a config for a device that need not be here. Where a kernel launches several binaries, it is the last.

    Args:
        spec, problem, config: what to compile.
        device: the target; its arch decides.
        time_limit_s: how long the compile may take.

    Raises:
        KernelError: it does not compile: what the compiler said, or how it died, in one line.
    """
    with scratch_folder() as folder:
        log, result = Path(folder) / "output", Path(folder) / "result"
        request = {
            "arch": device.arch,
            "kernel": spec.name,
            "references": registry.references(),
            "problem": problem.fields(),
            "config": dict(config),
            "result": str(result),
        }
        ended = _run(request, log, time_limit_s)
        if ended is None:
            raise KernelError(f"{config} for {device.arch}: compile took more than {time_limit_s:g} s")
        if ended or not result.exists():
            raise KernelError(
                f"{config} for {device.arch}: compiler died with {describe_exit(ended)}{last_output_line(log)}"
            )
        found = json.loads(result.read_text())
    if "error" in found:
        raise KernelError(f"{config} for {device.arch}: {found['error']}")
    return _binary(config, device.arch, found)


def _run(request: Mapping[str, Any], log: Path, time_limit_s: float) -> int | None:
    """How the child ended; None when it was killed for its time."""
    # The child finds modules as this process does, and no others: `-m` would put the working folder before them all.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    ready = Path(request["result"]).with_name("ready")
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "tuner.inspection.child", str(ready)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=log.parent,
        )
        try:
            assert child.stdin is not None
            with child.stdin:
                child.stdin.write(json.dumps(request).encode())
            return _wait(child, ready, time_limit_s)
        except BrokenPipeError:
            return child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()


def _wait(child: subprocess.Popen[bytes], ready: Path, time_limit_s: float) -> int | None:
    deadline = time.monotonic() + _START_S + time_limit_s
    while not ready.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    try:
        return child.wait(time_limit_s)
    except subprocess.TimeoutExpired:
        return None


def _binary(config: Config, arch: str, found: Mapping[str, Any]) -> Binary:
    metadata, resources = found["metadata"], found["resources"]
    return Binary(
        config,
        arch,
        found["stages"],
        num_warps=metadata["num_warps"],
        num_stages=metadata["num_stages"],
        num_ctas=metadata["num_ctas"],
        shared_bytes=resources["shared_bytes"],
        registers=resources["registers"],
        spill_bytes=resources["spill_bytes"],
        compile_ms=resources["compile_ms"],
        occupancy=occupancy(
            arch,
            num_warps=metadata["num_warps"],
            registers=resources["registers"],
            shared_bytes=resources["shared_bytes"],
        ),
    )
