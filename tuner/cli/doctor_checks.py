"""The checks of `tuner doctor`: the machine, the database and the tables. No check raises."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner import files
from tuner.errors import StoreError, TableError, UsageError
from tuner.sweep.nvml import driver_version, gpu_names

if TYPE_CHECKING:
    from tuner.lookup.sources import Source

TRITON_SUPPORTED = ((3, 6), (3, 10))
"""The first version supported, and the first after those."""
PROBE_TIMEOUT_S = 90.0
"""Importing torch from a cold network disk takes at most a minute; a driver that hangs never ends."""


class Status(str, Enum):
    """How serious a finding is."""

    OK = "ok"
    NOTE = "note"
    """Works, but for something that may be missed."""
    WRONG = "wrong"
    """Stops tuning or a lookup."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One line of the report.

    Attributes:
        topic: what was looked at.
        status: how serious it is.
        found: what is there.
        advice: what to type, "" where nothing need be done.
    """

    topic: str
    status: Status
    found: str
    advice: str = ""


def check_machine() -> list[Diagnosis]:
    """Run every check of the machine, in the order of the report."""
    python = Diagnosis("python", Status.OK, f"{platform.python_version()} ({sys.executable})")
    names, probed = gpu_names(), probe()
    if "error" in probed:
        advice = "python -c 'import torch, triton; print(torch.cuda.is_available())'"
        return [python, Diagnosis("imports", Status.WRONG, probed["error"], advice), check_compiler()]
    on_gpu = bool(names or probed["torch"].get("devices"))
    return [
        *check_gpus(names, probed),
        python,
        check_torch(probed),
        check_triton(probed),
        check_compiler(on_amd=bool(probed["torch"].get("devices") and probed["torch"].get("hip"))),
        check_cuobjdump(probed, needed=on_gpu),
        *check_kernels(probed),
    ]


def probe(timeout_s: float = PROBE_TIMEOUT_S) -> dict[str, Any]:
    """Return what a child process finds when it imports everything; {"error": reason} when it dies or hangs.

    It looks where this process does, and so where every command does: by `-m` or `-c` alone in the current folder, too.
    """
    places = [place for place in sys.path if isinstance(place, str)]  # imports pass over all others
    begin = f"import sys; sys.path[:] = {places!a}; from tuner.cli import doctor_probe; doctor_probe.main()"
    try:
        child = subprocess.run(
            [sys.executable, "-c", begin],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"importing torch and asking for GPUs did not end in {timeout_s:.0f} s"}
    except OSError as e:
        return {"error": f"no child process could be started: {e.strerror}"}
    with contextlib.suppress(ValueError, IndexError):
        return dict(json.loads(child.stdout.splitlines()[-1]))
    last = child.stderr.strip().splitlines()[-1:] or ["no message"]
    return {"error": f"a process that imports torch, triton and the kernels ended with {child.returncode}: {last[0]}"}


def check_gpus(names: list[str], probed: dict[str, Any]) -> list[Diagnosis]:
    """Check which GPUs the driver shows and torch can use."""
    driver = driver_version()
    findings = [Diagnosis("driver", Status.OK, f"NVIDIA {driver}")] if driver else []
    devices = probed["torch"].get("devices", [])
    if devices:
        return [*(Diagnosis("gpu", Status.OK, f"{d['name']} ({d['slug']})") for d in devices), *findings]
    if names:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        found = f"{', '.join(names)}: the driver shows it, torch cannot use it"
        advice = (
            "unset CUDA_VISIBLE_DEVICES" if hidden is not None else "install a torch built for CUDA: pip install torch"
        )
        return [Diagnosis("gpu", Status.WRONG, found, advice), *findings]
    return [Diagnosis("gpu", Status.NOTE, "none: `tuner run` works on Triton's interpreter here"), *findings]


def check_torch(probed: dict[str, Any]) -> Diagnosis:
    """Check torch and what it was built for."""
    torch = probed["torch"]
    if "error" in torch:
        return Diagnosis("torch", Status.WRONG, torch["error"], "pip install torch")
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else f"ROCm {torch['hip']}" if torch["hip"] else "no GPU"
    return Diagnosis("torch", Status.OK, f"{torch['version']}, built for {build}")


def check_triton(probed: dict[str, Any]) -> Diagnosis:
    """Check that Triton is supported and that its interpreter can work."""
    triton = probed["triton"]
    low, high = TRITON_SUPPORTED
    install = f"pip install 'triton>={low[0]}.{low[1]},<{high[0]}.{high[1]}'"
    if "error" in triton:
        return Diagnosis("triton", Status.WRONG, triton["error"], install)
    release = _release(triton["version"])
    if not low <= release < high:
        supported = f"{low[0]}.{low[1]} to {high[0]}.{high[1] - 1} are supported"
        return Diagnosis("triton", Status.WRONG, f"{triton['version']}: {supported}", install)
    numpy = _installed("numpy")
    if release < (3, 7) and _release(numpy) >= (2, 4):
        return Diagnosis(
            "triton",
            Status.NOTE,
            f"{triton['version']}: its interpreter fails with numpy {numpy}",
            "pip install 'numpy<2.4'",
        )
    return Diagnosis("triton", Status.OK, triton["version"])


def check_compiler(*, on_amd: bool = False) -> Diagnosis:
    """Check the C compiler and Python's headers, with which Triton builds its driver module on a GPU.

    On NVIDIA's GPUs our ops and adopted libraries are launched without it, so that a serving image is sound so.
    """
    named = os.environ.get("CC")
    compiler = shutil.which(named) if named else shutil.which("gcc") or shutil.which("clang")
    level = Status.WRONG if on_amd else Status.NOTE
    use = "every launch needs it" if on_amd else "Triton needs it, but for tuner.kernels and adopted libraries"
    if compiler is None:
        found = f"$CC is {named}, which is not there" if named else "neither gcc nor clang"
        return Diagnosis("compiler", level, f"{found}: {use}", "unset CC" if named else "apt install gcc")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        advice = f"apt install python{sys.version_info.major}.{sys.version_info.minor}-dev"
        return Diagnosis("compiler", level, f"{compiler}, but Python's headers are missing: {use}", advice)
    return Diagnosis("compiler", Status.OK, compiler)


def check_cuobjdump(probed: dict[str, Any], *, needed: bool) -> Diagnosis:
    """Check the tool in Triton's wheel that reads registers and spills."""
    path = probed["triton"].get("cuobjdump")
    if path and os.access(path, os.X_OK):
        return Diagnosis("cuobjdump", Status.OK, path)
    found = f"{path} cannot be run" if path else "not there"
    advice = "pip install --force-reinstall --no-deps triton" if needed else ""
    return Diagnosis("cuobjdump", Status.NOTE, f"{found}: registers and spills will not be known", advice)


def check_kernels(probed: dict[str, Any]) -> list[Diagnosis]:
    """Check that the installed kernels load, and that each is used."""
    kernels = probed["kernels"]
    findings = []
    for kernel in kernels:
        findings += [Diagnosis("kernel", Status.OK, spec) for spec in kernel["specs"]]
        for fault in kernel["faults"]:
            found = f"{kernel['name']} ({kernel['value']}) {fault}"
            findings.append(
                Diagnosis("kernel", Status.WRONG, found, "repair or uninstall the package that registers it")
            )
    if not kernels:
        findings.append(
            Diagnosis("kernel", Status.WRONG, "none is installed", "pip install --force-reinstall triton-tuner")
        )
    return findings


def _release(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def check_database(location: str | None) -> list[Diagnosis]:
    """Check whether the database exists and can be written, its revision, its integrity, and the kind of disk."""
    from tuner.store.engine import faults, locate
    from tuner.store.filesystem import journal_mode

    try:
        database = locate(location)
        with faults(database):
            if database.path is not None:
                files.check_regular(database.path, "database", error=StoreError)
            if database.path is None or database.path.exists():
                findings = _check_contents(location)
            else:
                findings = [_missing_database(database.path)]
    except StoreError as e:
        return [Diagnosis("database", Status.WRONG, str(e))]
    if database.path is not None and journal_mode(database.path) != "wal":
        found = f"{database.path} lies on a network file system: no write-ahead log there, one process at a time"
        findings.append(Diagnosis("database", Status.NOTE, found, "name one on a local disk with --db or $TUNER_DB"))
    return findings


def check_tables() -> list[Diagnosis]:
    """Check the tables that lookups in this environment would find."""
    from tuner.lookup import sources, strict

    findings: list[Diagnosis] = []
    with _warnings_of("tuner.lookup") as warnings:
        for source in sources.default_sources():
            if source.name.startswith("database "):
                continue
            try:
                devices = ", ".join(sorted(device.slug for device in source.devices()))
                broken = [*_check_shipped_kernels(source)]
            except (TableError, OSError) as e:
                warnings.append(f"{source.name}: {e}")
                continue
            for slug in source.slugs() or [""]:
                source.winners(slug)  # which warns of what it cannot read
            if devices:
                findings.append(Diagnosis("tables", Status.OK, f"{source.name}: for {devices}"))
            findings += broken
    findings += [Diagnosis("tables", Status.WRONG, warning) for warning in warnings]
    try:
        strict.is_on()
    except UsageError as e:
        findings.append(Diagnosis("strict", Status.WRONG, str(e)))
    return findings or [Diagnosis("tables", Status.OK, "none found through $TUNER_TABLES or installed packages")]


def _check_shipped_kernels(source: Source) -> Iterator[Diagnosis]:
    """Say what is wrong with the folders of compiled kernels beside a source's tables."""
    from tuner.lookup import sources, table_files
    from tuner.tables.verify import kernels

    place = sources.place_of(source)
    for each in () if place is None else place.iterdir():
        if each.name.endswith(table_files.KERNELS_SUFFIX):
            for finding in kernels.check(each):
                yield Diagnosis("tables", Status.WRONG, f"{finding.place}: {finding.found}", finding.advice)


def _missing_database(path: Path) -> Diagnosis:
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if folder.is_dir() and os.access(folder, os.W_OK):
        return Diagnosis("database", Status.OK, f"{path} is not there yet: the first `tuner run` makes it")
    return Diagnosis(
        "database",
        Status.WRONG,
        f"{path} cannot be made: {folder} is no folder that may be written to",
        "name another with --db or $TUNER_DB",
    )


def _check_contents(location: str | None) -> list[Diagnosis]:
    from tuner.store import health

    checked = health.check(location)
    health.try_writing(location)
    if checked.revision is None:
        return [Diagnosis("database", Status.OK, f"{checked.location} is empty: the first `tuner run` fills it")]
    if checked.complaints:
        return [Diagnosis("database", Status.WRONG, f"{checked.location}: {text}") for text in checked.complaints]
    return [Diagnosis("database", Status.OK, f"{checked.location}, schema {checked.revision}")]


@contextlib.contextmanager
def _warnings_of(name: str) -> Iterator[list[str]]:
    """Collect the warnings logged below a logger during the block, and keep them from stderr."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    kept: list[str] = []
    logger, handler = logging.getLogger(name), Keep(logging.WARNING)
    propagate = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield kept
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
