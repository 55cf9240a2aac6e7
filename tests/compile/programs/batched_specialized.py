"""Compile every tile of bmm_warp_specialized for sm_90, in each layout; print a JSON list of what came."""

from __future__ import annotations

import json
import sys

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.sweep import cross_target
from tuner.sweep.binary_resources import read_resources

DEVICE = KNOWN["sm_90"]
KINDS = [
    {"layout": "nt", "dtype": "bf16", "epilogue": "bias+gelu"},
    {"layout": "nn", "dtype": "fp16"},
    {"layout": "tn", "dtype": "bf16", "out_dtype": "fp32", "epilogue": "bias"},
    {"layout": "tt", "dtype": "fp16", "epilogue": "silu"},
    {"layout": "nn", "dtype": "fp32", "precision": "tf32", "epilogue": "bias+gelu"},
    {"layout": "tt", "dtype": "fp32", "precision": "tf32"},
    {"layout": "tn", "dtype": "fp32", "precision": "tf32"},
]
OUTSIDE = [
    {"BLOCK_SIZE_K": 32, "num_stages": 6},
    {"BLOCK_SIZE_K": 128, "BLOCK_SIZE_M": 128, "num_stages": 2},
    {"BLOCK_SIZE_N": 16, "EPILOGUE_PARTS": 1},
    {"BLOCK_SIZE_N": 256, "BLOCK_SIZE_M": 64, "num_warps": 4, "EPILOGUE_PARTS": 4, "num_stages": 2},
]
"""What changes a tile to one that is not tried, and that no fatal rule refuses: a table may hold it."""


def main() -> None:
    cross_target.activate("sm_90")
    spec = registry.find("bmm", "bmm_warp_specialized")
    found = []
    for kind in KINDS:
        problem = Problem(520, 520, 72, op="bmm", extras={"batch": 64}, **kind)
        configs = [one for one in spec.space(problem, DEVICE).configs() if one["GROUP_SIZE_M"] == 1]
        if kind is KINDS[0]:
            configs += [configs[-1].replace(**change) for change in OUTSIDE]
        found += [compiled(spec, problem, config) for config in configs]
    json.dump(found, sys.stdout)


def compiled(spec, problem, config):
    kernel = spec.compile(problem, config)
    assembly = kernel.asm["ptx"]
    return {
        "case": f"{problem} {config}",
        "layout": problem.layout,
        "tried": config in spec.space(problem, DEVICE).configs(),
        "refused": spec.space(problem, DEVICE).rejection(config, fatal_only=True),
        "shared_bytes": kernel.metadata.shared,
        "predicted_bytes": spec.shared_bytes(config, problem, DEVICE),
        "spill_bytes": read_resources(kernel, 0.0).spill_bytes,
        "stored_by_tma": "cp.async.bulk.tensor.3d.global" in assembly and "st.global" not in assembly,
        "loaded_by_tma": "cp.async.bulk.tensor.3d.shared" in assembly,
        "wgmma": "wgmma.mma_async" in assembly,
    }


if __name__ == "__main__":
    main()
