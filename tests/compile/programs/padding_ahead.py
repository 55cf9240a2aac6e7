"""What products beside their copies compile to for sm_90; print a JSON list, one row a config."""

from __future__ import annotations

import json
import re
import sys

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernels.base.operands import make_operands
from tuner.kernels.gemm.padded import spec as padded
from tuner.launch.launch import compile_launches
from tuner.sweep import cross_target

PROBLEMS = [
    Problem(1023, 2047, 4093, dtype="bf16", layout="nt"),
    Problem(1000, 2000, 3001, dtype="fp16", layout="nt", epilogue="bias+gelu", b_padded=True),
    Problem(1000, 2001, 4093, dtype="e4m3", layout="nt"),
]
WORDS = ("griddepcontrol.launch_dependents", "griddepcontrol.wait", "ld.acquire.gpu", "fence.proxy.async.global")


def main() -> None:
    cross_target.activate("sm_90")
    rows = []
    for index, problem in enumerate(PROBLEMS):
        found = [one for one in padded.space(problem, KNOWN["sm_90"]).configs() if "CHUNK_SIZE_K" in one]
        config = found[index * len(found) // len(PROBLEMS)]
        for launch in padded.program(make_operands(problem, "meta", 0), config):
            kernel = compile_launches([launch])
            ptx = kernel.asm["ptx"]
            rows.append(
                {
                    "case": f"{launch.function.__name__}: {problem} {config}",
                    "words": [word for word in WORDS if word in ptx],
                    "releases": re.findall(r"(?:atom|red)\S*release", ptx) != [],
                    "registers": kernel.metadata.num_warps * 32 * launch.options["maxnreg"],
                    "shared_bytes": kernel.metadata.shared,
                }
            )
    sys.stdout.write(json.dumps(rows))


if __name__ == "__main__":
    main()
