"""Compile tiles of `any_width` for one architecture, and print as JSON what came of each. Usage: any_width.py ARCH."""

from __future__ import annotations

import json
import re
import sys

from tuner import Config, Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.hopper import any_width
from tuner.sweep import binary_resources, cross_target

PLAIN = Problem(2048, 3584, 18944, dtype="bf16", layout="nt")
WIDE = Problem(640, 10240, 5120, dtype="fp16", layout="nt", out_dtype="fp32", epilogue="bias+gelu")
ODD = Problem(5000, 5000, 5000, dtype="bf16", layout="nt")
TILES = [
    (PLAIN, 128, 224, 4, {}),
    (PLAIN, 128, 176, 5, {}),
    (PLAIN, 192, 160, 4, {}),
    (PLAIN, 256, 160, 4, {}),
    (PLAIN, 256, 192, 3, {}),
    (WIDE, 128, 208, 4, {}),
    (ODD, 256, 160, 4, {"num_ctas": 2}),
    (ODD, 128, 240, 4, {"num_ctas": 2, "SHARE_B": True}),
    (ODD, 192, 144, 4, {"num_ctas": 2}),
]
"""Problems, rows, columns, stages and options."""


def main(arch: str) -> None:
    device, spec = KNOWN[arch], registry.find("matmul", "any_width")
    cross_target.activate(arch)
    found = []
    for problem, rows, columns, stages, options in TILES:
        config = Config(
            spec.name,
            BLOCK_SIZE_M=rows,
            BLOCK_SIZE_N=columns,
            BLOCK_SIZE_K=64,
            GROUP_SIZE_M=8,
            launch_pdl=True,
            num_stages=stages,
            num_warps=12 if rows == 192 else 8,
            **options,
        )
        compiled = spec.compile(problem, config)
        assembly, llir = compiled.asm["ptx"], compiled.asm["llir"]
        resources = binary_resources.read_resources(compiled, 0.0)
        found.append(
            {
                "case": f"{problem} {config}",
                "refused": spec.unserved(problem, device)
                or spec.space(problem, device).rejection(config, fatal_only=True),
                "spill_bytes": resources.spill_bytes,
                "shared_bytes": resources.shared_bytes,
                "predicted_bytes": spec.shared_bytes(config, problem, device),
                "widths": sorted({*map(int, re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16", assembly))}),
                "columns": columns,
                "multicasts": ".multicast::cluster" in assembly,
                "pair": "num_ctas" in options,
                "misplaced": any_width.misplaced(llir, config),
                "misplaced_larger": any_width.misplaced(llir, config.replace(num_stages=stages + 1)),
            }
        )
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
