"""What `tuner doctor` looks at on the machine: GPUs, Python, torch, Triton, compiler, kernels. No check raises."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tuner.cli.diagnosis import Finding, Status

TRITON_SUPPORTED = ((3, 6), (3, 10))
"""From, and below."""
PROBE_TIMEOUT_S = 90.0
"""Importing torch from a cold network disk takes a minute at worst; a driver that hangs takes for ever."""


def check_machine() -> list[Finding]:
    """Every check of the machine, in the order of the report."""
    python = Finding("python", Status.OK, f"{platform.python_version()} ({sys.executable})")
    names, probed = _nvml_names(), probe()
    if "error" in probed:
        advice = "python -c 'import torch, triton; print(torch.cuda.is_available())'"
        return [python, Finding("imports", Status.WRONG, probed["error"], advice), check_compiler(needed=bool(names))]
    on_gpu = bool(names or probed["torch"].get("devices"))
    return [
        *check_gpus(names, probed),
        python,
        check_torch(probed),
        check_triton(probed),
        check_compiler(needed=on_gpu),
        check_cuobjdump(probed, needed=on_gpu),
        *check_kernels(probed),
    ]


def probe(timeout_s: float = PROBE_TIMEOUT_S) -> dict[str, Any]:
    """What a child process finds when it imports everything; {"error": reason} when it dies or hangs."""
    try:
        child = subprocess.run(
            [sys.executable, "-m", "tuner.cli.doctor_probe"],
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


def check_gpus(names: list[str], probed: dict[str, Any]) -> list[Finding]:
    """The GPUs that the driver shows and that torch can use."""
    from tuner.sweep.clocks import driver_version

    driver = driver_version()
    findings = [Finding("driver", Status.OK, f"NVIDIA {driver}")] if driver else []
    devices = probed["torch"].get("devices", [])
    if devices:
        return [*(Finding("gpu", Status.OK, f"{d['name']} ({d['slug']})") for d in devices), *findings]
    if names:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        found = f"{', '.join(names)}: the driver shows it, torch cannot use it"
        advice = (
            "unset CUDA_VISIBLE_DEVICES" if hidden is not None else "install a torch built for CUDA: pip install torch"
        )
        return [Finding("gpu", Status.WRONG, found, advice), *findings]
    return [Finding("gpu", Status.NOTE, "none: `tuner run` works on Triton's interpreter here"), *findings]


def check_torch(probed: dict[str, Any]) -> Finding:
    """torch, and what it was built for."""
    torch = probed["torch"]
    if "error" in torch:
        return Finding("torch", Status.WRONG, torch["error"], "pip install torch")
    build = f"CUDA {torch['cuda']}" if torch["cuda"] else f"ROCm {torch['hip']}" if torch["hip"] else "no GPU"
    return Finding("torch", Status.OK, f"{torch['version']}, built for {build}")


def check_triton(probed: dict[str, Any]) -> Finding:
    """Triton, whether it is one we support, and whether its interpreter can work."""
    triton = probed["triton"]
    low, high = TRITON_SUPPORTED
    install = f"pip install 'triton>={low[0]}.{low[1]},<{high[0]}.{high[1]}'"
    if "error" in triton:
        return Finding("triton", Status.WRONG, triton["error"], install)
    found = _release(triton["version"])
    if not low <= found < high:
        supported = f"{low[0]}.{low[1]} to {high[0]}.{high[1] - 1} are supported"
        return Finding("triton", Status.WRONG, f"{triton['version']}: {supported}", install)
    numpy = _installed("numpy")
    if found < (3, 7) and _release(numpy) >= (2, 4):
        return Finding(
            "triton",
            Status.NOTE,
            f"{triton['version']}: its interpreter fails with numpy {numpy}",
            "pip install 'numpy<2.4'",
        )
    return Finding("triton", Status.OK, triton["version"])


def check_compiler(*, needed: bool) -> Finding:
    """The C compiler and Python's headers, with which Triton builds its driver module at the first launch on a GPU."""
    named = os.environ.get("CC")
    compiler = shutil.which(named) if named else shutil.which("gcc") or shutil.which("clang")
    worst = Status.WRONG if needed else Status.NOTE
    if compiler is None:
        found = f"$CC is {named}, which is not there" if named else "neither gcc nor clang: Triton needs one on a GPU"
        return Finding("compiler", worst, found, "unset CC" if named else "apt install gcc")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        advice = f"apt install python{sys.version_info.major}.{sys.version_info.minor}-dev"
        return Finding("compiler", worst, f"{compiler}, but Python's headers are missing: Triton needs them", advice)
    return Finding("compiler", Status.OK, compiler)


def check_cuobjdump(probed: dict[str, Any], *, needed: bool) -> Finding:
    """The tool of Triton's wheel that tells registers and spills."""
    path = probed["triton"].get("cuobjdump")
    if path and os.access(path, os.X_OK):
        return Finding("cuobjdump", Status.OK, path)
    found = f"{path} cannot be run" if path else "not there"
    advice = "pip install --force-reinstall --no-deps triton" if needed else ""
    return Finding("cuobjdump", Status.NOTE, f"{found}: registers and spills will not be known", advice)


def check_kernels(probed: dict[str, Any]) -> list[Finding]:
    """The installed kernels."""
    kernels = probed["kernels"]
    findings = []
    for kernel in kernels:
        if "error" in kernel:
            found = f"{kernel['name']} ({kernel['value']}) did not load: {kernel['error']}"
            findings.append(Finding("kernel", Status.WRONG, found, "mend or uninstall the package that registers it"))
        else:
            findings += [Finding("kernel", Status.OK, spec) for spec in kernel["specs"]]
    if not kernels:
        findings.append(
            Finding("kernel", Status.WRONG, "none is installed", "pip install --force-reinstall triton-tuner")
        )
    return findings


def _nvml_names() -> list[str]:
    """Names of the GPUs that NVIDIA's driver shows; asks no CUDA."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))) for index in range(count)]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _release(text: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
