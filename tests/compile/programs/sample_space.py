"""Compile a sample of the search space for one architecture; print a JSON list of what came of each config."""

from __future__ import annotations

import json
import random
import sys

from tuner import Problem
from tuner.device import KNOWN
from tuner.kernels import rules
from tuner.kernels.pointer import SPEC
from tuner.sweep import target

COMMON = [
    Problem(4096, 4096, 4096, dtype="bf16", layout="nt"),
    Problem(512, 1024, 2048, dtype="fp16", layout="nn", epilogue="bias+gelu"),
    Problem(16, 1000, 1001, dtype="fp16", layout="tn", out_dtype="fp32", epilogue="silu"),
]
FP8 = [
    Problem(64, 4096, 4096, a_dtype="e4m3", b_dtype="e5m2", layout="nt", epilogue="relu"),
    Problem(2048, 2048, 2048, dtype="e4m3", layout="nt", out_dtype="fp32"),
    Problem(256, 2048, 4096, dtype="e4m3", layout="nt", out_dtype="e4m3", epilogue="leaky_relu"),
]
FP32 = [Problem(1024, 1024, 1024, dtype="fp32", layout="nt", precision="tf32"), Problem(96, 64, 80, dtype="fp32")]


def main(arch: str, count: int) -> None:
    device = KNOWN[arch]
    problems = [problem for problem in [*COMMON, *FP8, *FP32] if SPEC.supports(problem, device) is None]
    target.activate(arch)
    draw = random.Random(arch)
    cases = [(problem, SPEC.default_config(problem, device)) for problem in problems[:3]]
    for index in range(count - len(cases)):
        problem = problems[(2 * index) % len(problems)]
        cases.append((problem, draw.choice(SPEC.space(problem, device).configs())))
    sys.stdout.write(json.dumps([_compiled(problem, config, device) for problem, config in cases]))


def _compiled(problem, config, device):
    compiled = SPEC.compile(problem, config)
    assembly = compiled.asm.get("ptx", "")
    return {
        "case": f"{problem} {config}",
        "aligned": problem.aligned,
        "shared_bytes": compiled.metadata.shared,
        "predicted_bytes": rules.shared_bytes(config, problem, device),
        "tile_bytes": rules.tile_bytes(config, problem),
        "wgmma": "wgmma" in assembly if assembly else None,
        "predicted_wgmma": rules.uses_wgmma(config, problem, device),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
