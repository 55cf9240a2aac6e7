"""Compile default and sampled configs of bmm and grouped_mm for one architecture; print a JSON list of what came."""

from __future__ import annotations

import json
import random
import re
import sys

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.sweep import cross_target

PROBLEMS = [
    Problem(512, 512, 128, dtype="fp16", op="bmm", extras={"batch": 64}),
    Problem(128, 4096, 128, dtype="bf16", layout="nt", epilogue="bias+silu", op="bmm", extras={"batch": 32}),
    Problem(4096, 4096, 2048, dtype="bf16", layout="nt", op="grouped_mm", extras={"groups": 8}),
    Problem(4096, 1024, 2048, dtype="bf16", epilogue="bias", op="grouped_mm", extras={"groups": 64}),
    Problem(4096, 4096, 2048, dtype="bf16", layout="nt", op="grouped_mm", extras={"groups": 8, "listed": True}),
]


def main(arch: str, sampled: int) -> None:
    device = KNOWN[arch]
    cross_target.activate(arch)
    draw = random.Random(arch)
    cases = []
    for problem in PROBLEMS if sampled else PROBLEMS[::2]:
        for spec in registry.serving(problem, device):
            configs = draw.sample(spec.space(problem, device).configs(), sampled)
            cases += [(spec, problem, config) for config in (spec.default_config(problem, device), *configs)]
    json.dump([compiled(*case, device) for case in cases], sys.stdout)


def compiled(spec, problem, config, device):
    kernel = spec.compile(problem, config)
    assembly = kernel.asm.get("ptx", "")
    return {
        "case": f"{problem} {config}",
        "kernel": spec.name,
        "shared_bytes": kernel.metadata.shared,
        "predicted_bytes": spec.shared_bytes(config, problem, device),
        "wgmma": "wgmma" in assembly,
        "tma": "cp.async.bulk.tensor" in assembly,
        # Bytes that one thread copies to shared memory at a time.
        "copies": sorted(set(re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], 0x(\w+)", assembly))),
        "rejected": spec.space(problem, device).rejection(config),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
