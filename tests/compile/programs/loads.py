"""Compile kernels whose loading warp loads by TMA, and count loads that loop over threads. Usage: loads.py ARCH."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from triton import knobs

from tuner import Config, Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.any_tile import any_height_tile
from tuner.sweep import cross_target

PLAIN = Problem(1024, 4096, 4096, dtype="bf16", layout="nt")
FP8 = Problem(1024, 4096, 4096, dtype="e4m3", layout="nt", scaling="row")
CASES: tuple[tuple[str, Problem, dict[str, Any]], ...] = (
    ("warp_specialized", PLAIN, {}),
    ("warp_specialized", PLAIN, {"num_ctas": 2}),
    ("warp_specialized", FP8, {"num_ctas": 2, "SHARE_B": True}),
    ("any_width", Problem(256, 5120, 8192, dtype="bf16", layout="nt"), {"num_ctas": 2, "SHARE_B": True}),
    ("ping_pong", PLAIN, {}),
    ("cluster_k", Problem(32, 1280, 8192, dtype="bf16", layout="nt"), {}),
)
TILE = Problem(208, 8192, 4096, dtype="bf16", layout="nt")


def main() -> None:
    device, found = KNOWN[sys.argv[1]], []
    cross_target.activate(sys.argv[1])
    for name, problem, options in CASES:
        config = registry.find("matmul", name).space(problem, device).configs()[0]
        found.append(counted(problem, config.replace(**options)))
    for kind in ({}, {"num_ctas": 4}, {"num_ctas": 2, "SHARE_B": True}):
        found.append(counted(TILE, any_height_tile.tile_config(104, 128, TILE, device, **kind)))
    sys.stdout.write(json.dumps(found))


def counted(problem: Problem, config: Config) -> dict[str, Any]:
    """Loads by TMA in a config's binary, and branches that any thread may take: a load's loop over threads has one."""
    compiled = registry.find("matmul", config.kernel).compile(problem, config)
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(compiled.asm["cubin"])
        shown = subprocess.run([knobs.nvidia.nvdisasm.path, "-c", binary], capture_output=True, text=True, check=True)
    text = shown.stdout
    return {"case": f"{problem} {config}", "loads": text.count("UTMALDG"), "loops": text.count("BRA.U.ANY")}


if __name__ == "__main__":
    main()
