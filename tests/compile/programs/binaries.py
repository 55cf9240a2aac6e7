"""Which (problem, config) pairs share a binary; print a JSON list of {case, kernel, group, class, hash}.

`group` names pairs of a kernel that the tests expect to be one binary.
"""

from __future__ import annotations

import json
import sys

from tuner import Config, Problem
from tuner.kernel import registry
from tuner.sweep import cross_target

TILE = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16, "BLOCK_SIZE_K": 32}
SMALL = Config("pointer", **TILE, GROUP_SIZE_M=1, num_stages=1, num_warps=1)
SPLIT = Config("split_k", **TILE, LOADS="pointer", SPLIT_K=2, num_stages=1, num_warps=1)
SPLIT_TMA = SPLIT.replace(LOADS="tma")
SWAPPED = Config("swap_ab", **{**TILE, "BLOCK_SIZE_N": 64}, LOADS="tma", SPLIT_K=1, num_stages=1, num_warps=4)
TMA = Config("tma", **{**TILE, "BLOCK_SIZE_M": 64}, GROUP_SIZE_M=1, num_stages=1, num_warps=4)
PERSISTENT = Config("persistent_tma", **{**dict(TMA), "BLOCK_SIZE_N": 32}, EPILOGUE_PARTS=1)
GEMV = Config("gemv", BLOCK_SIZE_N=16, BLOCK_SIZE_K=64, SPLIT_K=1, num_warps=1)
HALF = Problem(64, 64, 64)
LONG = Problem(64, 64, 256)
NT = Problem(64, 64, 64, layout="nt")
ROW = Problem(1, 64, 256, layout="nt")
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
    ("nt", NT, SMALL),
    ("nt", Problem(128, 72, 256, layout="nt"), SMALL),
    ("bias", Problem(64, 64, 64, epilogue="bias"), SMALL),
    ("relu", Problem(64, 64, 64, epilogue="relu"), SMALL),
    ("two warps", HALF, SMALL.replace(num_warps=2)),
    ("two stages", HALF, SMALL.replace(num_stages=2)),
    ("larger tile", HALF, SMALL.replace(BLOCK_SIZE_N=32)),
    ("split", LONG, SPLIT),
    ("split", LONG, SPLIT.replace(SPLIT_K=4)),
    ("split", Problem(128, 256, 1024), SPLIT.replace(SPLIT_K=3)),
    ("split, by TMA", LONG, SPLIT_TMA),
    ("split, by TMA", Problem(100, 264, 1000), SPLIT_TMA.replace(SPLIT_K=3)),
    ("split, to fp32", Problem(64, 64, 256, out_dtype="fp32"), SPLIT),
    ("exchanged", NT, SWAPPED),
    ("exchanged", Problem(8, 6144, 4096, layout="nt"), SWAPPED),
    ("exchanged, bias", Problem(64, 64, 64, layout="nt", epilogue="bias"), SWAPPED),
    ("exchanged, split", Problem(64, 64, 256, layout="nt"), SWAPPED.replace(SPLIT_K=2)),
    ("exchanged, split", Problem(16, 128, 512, layout="nt"), SWAPPED.replace(SPLIT_K=4)),
    ("exchanged, by pointers", NT, SWAPPED.replace(LOADS="pointer")),
    ("exchanged, nn", HALF, SWAPPED),
    ("tma", HALF, TMA),
    ("tma", Problem(1000, 1032, 72), TMA.replace(GROUP_SIZE_M=8)),
    ("tma, nt", NT, TMA),
    ("tma, larger tile", HALF, TMA.replace(BLOCK_SIZE_N=32)),
    ("tma, bf16", Problem(64, 64, 64, dtype="bf16"), TMA),
    ("persistent", HALF, PERSISTENT),
    ("persistent", Problem(1000, 1032, 72), PERSISTENT.replace(GROUP_SIZE_M=4)),
    ("persistent, nt", NT, PERSISTENT),
    ("gemv", ROW, GEMV),
    ("gemv", Problem(1, 4096, 1024, layout="nt"), GEMV),
    ("gemv, split", ROW, GEMV.replace(SPLIT_K=2)),
    ("gemv, split", Problem(1, 128, 1024, layout="nt"), GEMV.replace(SPLIT_K=4)),
    ("gemv, two rows", Problem(2, 64, 256, layout="nt"), GEMV),
    ("gemv, K of no whole steps", Problem(1, 64, 264, layout="nt"), GEMV),
]


def main() -> None:
    cross_target.activate("sm_90")
    rows = []
    for group, problem, config in CASES:
        spec = registry.find("matmul", config.kernel)
        rows.append(
            {
                "case": f"{problem} {config}",
                "kernel": config.kernel,
                "group": group,
                "class": spec.compile_class(problem, config),
                "hash": spec.compile(problem, config).hash,
            }
        )
    sys.stdout.write(json.dumps(rows))


if __name__ == "__main__":
    main()
