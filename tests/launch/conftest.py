"""Run a program of programs/ in a child process whose CUDA driver is the stub, and read what reached it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Launch:
    """One launch as the driver saw it; `params` are raw little-endian bytes, `attributes` begin with their numbers."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    attributes: tuple[tuple[int, ...], ...]
    params: tuple[bytes, ...]

    def integer(self, index: int) -> int:
        return int.from_bytes(self.params[index], "little", signed=True)

    def address(self, index: int) -> int:
        """A pointer, or the address that a descriptor is of: the stub writes it first."""
        return int.from_bytes(self.params[index][:8], "little")


@dataclass(frozen=True)
class Report:
    """What a program printed and logged, the binaries it loaded and the launches that reached the driver."""

    printed: Any
    loads: tuple[str, ...]
    launches: tuple[Launch, ...]
    stderr: str = ""


@pytest.fixture(scope="session")
def stub_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the stub of the CUDA driver cannot be built")
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    headers = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    directory = tmp_path_factory.mktemp("libcuda")
    flags = ["-std=gnu11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-I{headers}"]
    output = directory / "libcuda.so.1"
    subprocess.run([compiler, *flags, "-o", str(output), str(HERE / "stub" / "libcuda.c")], check=True)
    return directory


class Stub:
    """Runs programs over the stub; all that one module runs share a Triton cache that starts without kernels."""

    def __init__(self, forks: Any, library: Path, work: Path) -> None:
        self.forks = forks
        self.library = library
        self.work = work

    def run(
        self, program: str, *arguments: str, alone: bool = False, under: tuple[str, ...] = (), **changed: str
    ) -> Report:
        """A program in a fork of a process that has imported torch and Triton; alone, in a process of its own.

        That may be started by `tuner` with the arguments `under`. Further arguments are environment variables.
        """
        log = self.work / "launches.jsonl"
        log.write_text("")
        path, env = HERE / "programs" / program, {**self.forks.env, **self._environment(log), **changed}
        if alone:
            command = [sys.executable, str(path), *arguments]
            if under:
                command = [sys.executable, "-m", "tuner", *under, "--", *command]
            found = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
        else:
            found = self.forks.run(path, *arguments, env=env)
        assert found.returncode == 0, f"{program} failed:\n{found.stderr}"
        events = [json.loads(line) for line in log.read_text().splitlines()]
        return Report(
            printed=json.loads(found.stdout.splitlines()[-1]),
            loads=tuple(event["name"] for event in events if event["event"] == "load"),
            launches=tuple(_launch(event) for event in events if event["event"] == "launch"),
            stderr=found.stderr,
        )

    def _environment(self, log: Path) -> dict[str, str]:
        return {
            "CUDA_STUB_LOG": str(log),
            "TRITON_CACHE_DIR": str(self.work / "triton"),
            "TRITON_LIBCUDA_PATH": str(self.library),
            "TUNER_DB": str(self.work / "tuner.db"),
        }


def _launch(event: dict[str, Any]) -> Launch:
    return Launch(
        name=event["name"],
        grid=tuple(event["grid"]),
        block=tuple(event["block"]),
        shared_bytes=event["shared_bytes"],
        stream=event["stream"],
        attributes=tuple(map(tuple, event["attributes"])),
        params=tuple(bytes.fromhex(param) for param in event["params"]),
    )


@pytest.fixture(scope="session")
def launching(stub_directory: Path, forks: Callable[..., Any]) -> Any:
    """Forks that find the stub where the CUDA driver would be."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON_", "TUNER_"))}
    libraries = os.pathsep.join(filter(None, [str(stub_directory), os.environ.get("LD_LIBRARY_PATH")]))
    return forks(
        "launching",
        {**kept, "CUDA_VISIBLE_DEVICES": "", "LD_LIBRARY_PATH": libraries, "PYTHONPATH": str(HERE / "stub")},
    )


@pytest.fixture(scope="session")
def make_stub(launching: Any, stub_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Stub]:
    """Stubs of which each begins with a Triton cache that holds no kernel, but what the C compiler made of Triton."""
    first = Stub(launching, stub_directory, tmp_path_factory.mktemp("stub"))
    first.run("driver.py")

    def make() -> Stub:
        work = tmp_path_factory.mktemp("stub")
        shutil.copytree(first.work / "triton", work / "triton")
        return Stub(launching, stub_directory, work)

    return make


@pytest.fixture(scope="module")
def stub(make_stub: Callable[[], Stub]) -> Stub:
    return make_stub()


@pytest.fixture(scope="session")
def make_rows() -> Any:
    """Tables of which each problem's winner is a config."""
    from tuner.hardware.device import KNOWN, Environment
    from tuner.kernel import registry
    from tuner.lookup.row import Provenance, Row
    from tuner.lookup.table import Table

    made = Provenance(Environment("3.7.1", "2.13.0", "cuda 13.0", "580.1", "3.11.7"), 1, "0.1.0")

    def make(winners: dict[Any, Any]) -> Table:
        versions = [registry.find(problem.op, config.kernel).version for problem, config in winners.items()]
        known = zip(winners.items(), versions, strict=True)
        rows = [Row(problem, config, version, made, 12.5, 1.25, 0.95, 1) for (problem, config), version in known]
        return Table(rows[0].problem.op, KNOWN["sm_90"], "2026-01-31T12:00:00Z", tuple(rows))

    return make
