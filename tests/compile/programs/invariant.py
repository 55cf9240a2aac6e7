"""Compile configs of invariant families, for few rows and many; print which products their PTX has."""

from __future__ import annotations

import json
import random
import re
import sys

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm import invariant
from tuner.sweep import cross_target

KINDS = {
    "bf16": {"dtype": "bf16"},
    "bf16 in parts": {"dtype": "bf16", "n": 1024},
    "tf32": {"dtype": "fp32", "precision": "tf32"},
    "e4m3": {"dtype": "e4m3"},
    "e4m3, moved": {"dtype": "e4m3", "out_dtype": "fp32"},
    "e4m3, blocks": {"dtype": "e4m3", "scaling": "block"},
    "ieee": {"dtype": "fp32"},
}
_PRODUCT = re.compile(r"\b(wgmma\.mma_async|mma\.sync|tcgen05\.mma)\S*?\.m(\d+)n\d+k(\d+)|\b(fma\.rn\.f32)\b")


def products_of(ptx: str) -> set[str]:
    found = {match.groups() for match in _PRODUCT.finditer(ptx)}
    instructions = {f"{name} m{rows} k{length}" for name, rows, length, _ in found if name}
    return instructions or {"fma" for *_, plain in found if plain}


def main(arch: str) -> None:
    device = KNOWN[arch]
    cross_target.activate(arch)
    draw, found = random.Random(arch), []
    for kind, parts in KINDS.items():
        if arch == "sm_80" and "e4m3" in kind:
            continue
        for m in (1, 2048):
            problem = Problem(m, **{"n": 4096, "k": 4096, "layout": "nt", "invariant": True, **parts})
            for spec in registry.serving(problem, device):
                configs = [spec.default_config(problem, device), draw.choice(spec.space(problem, device).configs())]
                if spec.name == "pointer" and m == 1:
                    configs.append(invariant.witness_config(problem, device))
                for config in configs:
                    ptx = spec.compile(problem, config).asm["ptx"]
                    found.append({"kind": kind, "case": f"{problem} {config}", "products": sorted(products_of(ptx))})
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
