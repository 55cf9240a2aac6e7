"""Compile configs of `block_scaled_warp_specialized` for sm_90; print as JSON what became of each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile

from triton.backends.nvidia.compiler import get_ptxas

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.sweep import cross_target
from tuner.sweep.binary_resources import read_resources

SPEC = registry.find("matmul", "block_scaled_warp_specialized")
CASES = [
    # The tile, the parts of a store, and a problem. TMA reads its scales if M and the steps are multiples of 4.
    (128, 128, 2, Problem(4096, 4096, 7168, dtype="e4m3", layout="nt", scaling="block")),
    # Rows of 1,001 elements: the output is stored through its pointer.
    (128, 128, 4, Problem(516, 1001, 1536, dtype="e4m3", layout="nt", scaling="block", epilogue="bias+gelu")),
    (128, 128, 2, Problem(129, 1000, 912, dtype="e4m3", layout="nt", scaling="block", out_dtype="fp32")),
    (128, 64, 1, Problem(128, 7168, 2048, a_dtype="e4m3", b_dtype="e5m2", layout="nt", scaling="block")),
    (64, 128, 4, Problem(61, 7168, 2304, dtype="e4m3", layout="nt", scaling="block", epilogue="silu")),
    (64, 64, 1, Problem(64, 7168, 2048, dtype="e4m3", layout="nt", scaling="block", out_dtype="e4m3")),
    (8, 64, 1, Problem(4, 7168, 2048, dtype="e4m3", layout="nt", scaling="block")),
    (8, 64, 1, Problem(1, 7168, 2048, dtype="e4m3", layout="nt", scaling="block", out_dtype="fp16", epilogue="bias")),
    (16, 128, 2, Problem(13, 24576, 1536, dtype="e5m2", layout="nt", scaling="block")),
    (32, 64, 1, Problem(17, 208, 128, dtype="e4m3", layout="nt", scaling="block")),
]


def main(arch: str) -> None:
    device = KNOWN[arch]
    cross_target.activate(arch)
    found = []
    for rows, columns, parts, problem in CASES:
        tile = {"BLOCK_SIZE_M": (rows,), "BLOCK_SIZE_N": (columns,)}
        configs = SPEC.space(problem, device).narrowed(**tile).configs()
        config = next(one for one in configs if one["EPILOGUE_PARTS"] == parts)
        compiled = SPEC.compile(problem, config)
        resources, ptx = read_resources(compiled, 0.0), compiled.asm["ptx"]
        found.append(
            {
                "case": f"{problem} {config}",
                "rows": rows,
                "spill_bytes": resources.spill_bytes,
                "shared_bytes": resources.shared_bytes,
                "predicted_bytes": SPEC.shared_bytes(config, problem, device),
                "wgmma": len(re.findall(r"wgmma\.mma_async", ptx)),
                "loads": len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared", ptx)),
                "copies": len(re.findall(r"cp\.async\.ca\.shared", ptx)),
                "serialized": _serialized(ptx, arch),
            }
        )
    sys.stdout.write(json.dumps(found))


def _serialized(ptx: str, arch: str) -> list[str]:
    """What ptxas says of wgmma instructions that it does not let run asynchronously."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as source, tempfile.NamedTemporaryFile() as binary:
        source.write(ptx)
        source.flush()
        path = get_ptxas(int(arch.removeprefix("sm_"))).path
        command = [path, f"--gpu-name={arch}a", "-v", source.name, "-o", binary.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-2000:]
    return [line for line in said.splitlines() if "C75" in line or "serializ" in line]


if __name__ == "__main__":
    main(sys.argv[1])
