"""Which numbers of stages give the same machine code; print a JSON list of {case, predicted, differ}."""

from __future__ import annotations

import json
import sys

from tuner import Config, Problem
from tuner.hardware.device import KNOWN
from tuner.kernels.gemm.pointer.spec import SPEC
from tuner.kernels.space import tile_resources
from tuner.sweep import cross_target

TILE = Config("pointer", BLOCK_SIZE_M=64, BLOCK_SIZE_N=32, BLOCK_SIZE_K=64, GROUP_SIZE_M=1, num_stages=2, num_warps=4)
PROBLEMS = [
    Problem(256, 256, 256, dtype="bf16", layout="nt"),
    Problem(255, 255, 255, dtype="bf16", layout="nt"),
    Problem(255, 256, 255, dtype="bf16"),
    Problem(254, 254, 254, dtype="bf16"),
]


def main() -> None:
    cross_target.activate("sm_90")
    rows = []
    for problem in PROBLEMS:
        two, four = (SPEC.compile(problem, TILE.replace(num_stages=stages)) for stages in (2, 4))
        differ = tile_resources.stages_differ(problem, KNOWN["sm_90"])
        rows.append({"case": str(problem), "predicted": differ, "differ": two.asm["cubin"] != four.asm["cubin"]})
    sys.stdout.write(json.dumps(rows))


if __name__ == "__main__":
    main()
