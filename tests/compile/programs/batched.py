"""Compile default and sampled configs of ops of many products for one architecture; print a JSON list of each."""

from __future__ import annotations

import json
import random
import re
import sys

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.space import tile_resources
from tuner.launch.plan import recorded
from tuner.sweep import cross_target

PROBLEMS = [
    Problem(512, 512, 128, dtype="fp16", op="bmm", extras={"batch": 64}),
    Problem(128, 4096, 128, dtype="bf16", layout="nt", epilogue="bias+silu", op="bmm", extras={"batch": 32}),
    Problem(4096, 4096, 2048, dtype="bf16", layout="nt", op="grouped_mm", extras={"groups": 8}),
    Problem(4096, 1024, 2048, dtype="bf16", epilogue="bias", op="grouped_mm", extras={"groups": 64}),
    Problem(4096, 4096, 2048, dtype="bf16", layout="nt", op="grouped_mm", extras={"groups": 8, "listed": True}),
]
SILU = {"layout": "nt", "epilogue": "silu", "op": "fused_experts"}
EXPERTS = [
    Problem(4096, 1536, 4096, dtype="fp16", **SILU, extras={"groups": 8, "top_k": 2}),
    Problem(1, 768, 2048, dtype="bf16", **SILU, extras={"groups": 128, "top_k": 8}),
    Problem(64, 768, 2048, dtype="bf16", **SILU, extras={"groups": 128, "top_k": 8}),
    Problem(512, 1024, 1024, dtype="bf16", **SILU, aligned=False, extras={"groups": 8, "top_k": 2}),
    Problem(64, 255, 511, dtype="fp16", **SILU, extras={"groups": 8, "top_k": 2}),
    Problem(512, 1024, 1024, dtype="fp32", precision="tf32", **SILU, extras={"groups": 8, "top_k": 2}),
    Problem(512, 1024, 1024, dtype="fp32", precision="tf32x3", **SILU, extras={"groups": 8, "top_k": 2}),
    Problem(512, 1024, 1024, dtype="fp32", **SILU, extras={"groups": 8, "top_k": 2}),
]


def main(arch: str, sampled: int, what: str) -> None:
    device = KNOWN[arch]
    cross_target.activate(arch)
    draw = random.Random(arch)
    cases = []
    chosen = EXPERTS if what == "experts" else PROBLEMS if sampled else PROBLEMS[::2]
    for problem in chosen:
        for spec in registry.of(problem.op).values():
            if spec.supports(problem, device) is not None:
                continue
            configs = draw.sample(spec.space(problem, device).configs(), sampled)
            cases += [(spec, problem, config) for config in (spec.default_config(problem, device), *configs)]
    one_by_one = by_launch if what == "experts" else compiled
    json.dump([one_by_one(*case, device) for case in cases], sys.stdout)


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


def by_launch(spec, problem, config, device):
    """What each launch of one config takes, and whether it has wgmma's sums and descriptors."""
    with recorded() as seen:
        spec.compile(problem, config)

    def with_words(words):
        return [launch.function.__name__ for launch, kernel in seen.launches if words in kernel.asm.get("ptx", "")]

    return {
        "case": f"{problem} {config}",
        "kernel": spec.name,
        "launches": {launch.function.__name__: kernel.metadata.shared for launch, kernel in seen.launches},
        "wgmma": with_words("wgmma"),
        "tma": with_words("cp.async.bulk.tensor"),
        "aligned": problem.aligned,
        "narrow_stores": with_words("st.global.b16"),
        "predicted_bytes": spec.shared_bytes(config, problem, device),
        "predicted_wgmma": tile_resources.uses_wgmma(config, problem, device),
        "pipelined": problem.aligned and config.integer("num_stages") > 1 and problem.precision != "tf32x3",
        "rejected": spec.space(problem, device).rejection(config, fatal_only=True),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *(sys.argv[3:] or ["products"]))
