"""The registers, spills and shared memory of a compiled kernel, read from its binary without a GPU."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from typing import Any

from tuner.store.records import Resources

_RESERVED = re.compile(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]")
"""A shared memory array in PTX that inline assembly reserves; Triton's own array has no length."""


def read_resources(compiled: Any, compile_ms: float) -> Resources:
    """Read the resources of one of Triton's CompiledKernels."""
    registers = spill_bytes = None
    if cubin := compiled.asm.get("cubin"):
        registers, spill_bytes = _cubin_usage(cubin)
    elif text := compiled.asm.get("amdgcn"):
        registers = _number(r"\.vgpr_count:\s*(\d+)", text)
        spills = _number(r"\.vgpr_spill_count:\s*(\d+)", text)
        spill_bytes = None if spills is None else 4 * spills
    return Resources(round(compile_ms, 1), registers, spill_bytes, shared_bytes(compiled))


def shared_bytes(compiled: Any) -> int:
    """Return a block's shared memory: what Triton requests, and what inline PTX reserves without Triton knowing."""
    return int(compiled.metadata.shared) + sum(map(int, _RESERVED.findall(compiled.asm.get("ptx", ""))))


def program(*compiled: Any) -> str:
    """Return a digest that is equal for two lists of CompiledKernels whose binaries and launch shapes are the same."""
    digest = hashlib.sha256()
    for each in compiled:
        digest.update(each.asm.get("cubin") or each.asm.get("hsaco") or b"")
        digest.update(f"{each.metadata.num_warps} {each.metadata.shared}".encode())
    return digest.hexdigest()[:16]


def _cubin_usage(cubin: bytes) -> tuple[int | None, int | None]:
    """Return registers and stack by cuobjdump, (None, None) where the tool is missing."""
    from triton import knobs

    try:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
            shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None, None
    return _number(r"REG:(\d+)", shown), _number(r"STACK:(\d+)", shown)


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else None
