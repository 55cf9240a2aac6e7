"""Which (problem, config) pairs share a binary; print a JSON list of {case, group, class, hash}.

`group` names pairs that the tests expect to be one binary.
"""

from __future__ import annotations

import json
import sys

from tuner import Config, Problem
from tuner.kernels.pointer import SPEC
from tuner.sweep import target

SMALL = Config("pointer", BLOCK_SIZE_M=16, BLOCK_SIZE_N=16, BLOCK_SIZE_K=32, GROUP_SIZE_M=1, num_stages=1, num_warps=1)
HALF = Problem(64, 64, 64)
CASES = [
    ("fp16", HALF, SMALL),
    ("fp16", Problem(4096, 1024, 2048), SMALL),
    ("fp16", Problem(1000, 1032, 992), SMALL),
    ("fp16", HALF, SMALL.replace(GROUP_SIZE_M=8)),
    ("fp16, odd K", Problem(64, 64, 65), SMALL),
    ("fp16, K of no whole steps", Problem(64, 64, 72), SMALL),
    ("fp16, odd N", Problem(64, 65, 64), SMALL),
    ("fp16, off its address", Problem(64, 64, 64, aligned=False), SMALL),
    ("fp16, K of 1", Problem(64, 64, 1), SMALL),
    ("fp16, wide", Problem(64, 2**28, 64), SMALL),
    ("bf16", Problem(64, 64, 64, dtype="bf16"), SMALL),
    ("fp16 to fp32", Problem(64, 64, 64, out_dtype="fp32"), SMALL),
    ("nt", Problem(64, 64, 64, layout="nt"), SMALL),
    ("nt", Problem(128, 72, 256, layout="nt"), SMALL),
    ("bias", Problem(64, 64, 64, epilogue="bias"), SMALL),
    ("relu", Problem(64, 64, 64, epilogue="relu"), SMALL),
    ("two warps", HALF, SMALL.replace(num_warps=2)),
    ("two stages", HALF, SMALL.replace(num_stages=2)),
    ("larger tile", HALF, SMALL.replace(BLOCK_SIZE_N=32)),
]


def main() -> None:
    target.activate("sm_90")
    rows = []
    for group, problem, config in CASES:
        rows.append(
            {
                "case": f"{problem} {config}",
                "group": group,
                "class": SPEC.compile_class(problem, config),
                "hash": SPEC.compile(problem, config).hash,
            }
        )
    sys.stdout.write(json.dumps(rows))


if __name__ == "__main__":
    main()
