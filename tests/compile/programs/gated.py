"""Compile default and sampled configs of gated_linear for one architecture; print a JSON list of what came."""

from __future__ import annotations

import json
import random
import re
import sys

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.gated.space import as_computed
from tuner.kernels.space import tile_resources
from tuner.launch.launch import TILE
from tuner.sweep import cross_target
from tuner.sweep.binary_resources import read_resources

SILU = {"layout": "nt", "epilogue": "silu", "op": "gated_linear"}
PROBLEMS = [
    Problem(1, 14336, 4096, dtype="bf16", **SILU),
    Problem(3, 1000, 200, dtype="fp16", **SILU),
    Problem(32, 14336, 4096, dtype="bf16", **SILU),
    Problem(200, 3072, 1024, dtype="bf16", layout="nt", epilogue="gelu", op="gated_linear"),
    Problem(129, 7168, 8192, dtype="bf16", **SILU),
    Problem(4096, 14336, 4096, dtype="fp16", **SILU),
    Problem(512, 1024, 1024, dtype="bf16", **SILU, aligned=False),
    Problem(64, 255, 511, dtype="fp16", **SILU),
    Problem(512, 1024, 1024, dtype="fp32", precision="tf32", **SILU),
    Problem(512, 1024, 1024, dtype="fp32", precision="tf32x3", **SILU),
    Problem(16, 1024, 1024, dtype="fp32", **SILU),
]


def main(arch: str, sampled: int) -> None:
    device = KNOWN[arch]
    cross_target.activate(arch)
    draw = random.Random(arch)
    cases = []
    for problem in PROBLEMS:
        for spec in registry.of(problem.op).values():
            if spec.supports(problem, device) is not None:
                continue
            every = spec.space(problem, device).configs()
            configs = draw.sample(every, min(sampled, len(every)))
            cases += [(spec, problem, config) for config in (spec.default_config(problem, device), *configs)]
    json.dump([compiled(*case, device) for case in cases], sys.stdout)


def compiled(spec, problem, config, device):
    kernel = spec.compile(problem, config)
    assembly = kernel.asm.get("ptx", "")
    inner, both = as_computed(config, problem)
    return {
        "case": f"{problem} {config}",
        "kernel": spec.name,
        "shared_bytes": kernel.metadata.shared,
        "predicted_bytes": spec.shared_bytes(config, problem, device) if spec.shared_bytes else None,
        "spill_bytes": read_resources(kernel, 0.0).spill_bytes,
        "wgmma": "wgmma" in assembly,
        "predicted_wgmma": "BLOCK_SIZE_M" in config and tile_resources.uses_wgmma(inner, both, device),
        "loaded_by_tma": "cp.async.bulk.tensor.2d.shared" in assembly,
        "aligned": problem.aligned,
        "narrow_stores": "st.global.b16" in assembly,
        "sides": ", ".join(f"{name}={config[name]}" for name in sorted(TILE) if name in config),
        "warps": config["num_warps"],
        "clusters": "num_ctas" in config,
        "late": starts_next_late(assembly),
        "stores": sorted(set(re.findall(r"st\.global[.\w]*", assembly))),
        "rejected": spec.space(problem, device).rejection(config),
    }


def starts_next_late(assembly):
    """Whether the next kernel may start once everything is loaded; the text is in the order of the program."""
    start = assembly.find("griddepcontrol.launch_dependents")
    loads = [assembly.rfind(word) for word in ("ld.global", "cp.async.c", "cp.async.bulk.tensor.2d.shared")]
    return start > max(loads) > assembly.find("griddepcontrol.wait") > 0


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
