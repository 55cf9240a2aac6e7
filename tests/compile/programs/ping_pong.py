"""Compile tiles of kernels whose warpgroups take turns, and print as JSON what came of it. Usage: ping_pong.py ARCH."""

from __future__ import annotations

import json
import sys

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.sweep import binary_resources, cross_target

PROBLEMS = [
    Problem(4096, 24576, 1536, dtype="bf16", layout="nt", epilogue="bias+gelu"),
    Problem(4096, 24576, 1536, dtype="e4m3", layout="nt", scaling="row"),
    Problem(926, 12288, 4096, dtype="e4m3", layout="nt", scaling="row", epilogue="bias"),
]


def main() -> None:
    device, found = KNOWN[sys.argv[1]], []
    cross_target.activate(sys.argv[1])
    for name in ("ping_pong", "any_height_ping_pong"):
        spec = registry.find("matmul", name)
        for problem in PROBLEMS:
            tiles = {
                (config["BLOCK_SIZE_M"], config.get("BLOCK_SIZE_N_REST")): config
                for config in spec.space(problem, device).configs()
            }
            for config in tiles.values():
                resources = binary_resources.read_resources(spec.compile(problem, config), 0)
                found.append(
                    {
                        "case": f"{problem} {config}",
                        "kernel": name,
                        "rest": config.get("BLOCK_SIZE_N_REST", 0),
                        "biased": problem.epilogue != "none" and problem.scaling == "row",
                        "spill_bytes": resources.spill_bytes,
                        "shared_bytes": resources.shared_bytes,
                        "predicted_bytes": spec.shared_bytes(config, problem, device),
                    }
                )
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
