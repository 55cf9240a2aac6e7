"""Compile each kernel's default config and a sample for scaled and int8 problems; print a JSON list of what came."""

from __future__ import annotations

import json
import random
import sys

from tuner import Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.sweep import cross_target

PROBLEMS = [
    # B is not K-major: wgmma and tcgen05 take 8-bit operands only so, Triton turns them on the way.
    Problem(2048, 2048, 2048, dtype="i8", layout="nn"),
    Problem(2, 4096, 4096, dtype="i8", layout="nt", scaling="row"),
    Problem(2048, 2048, 2048, dtype="e4m3", layout="nt", scaling="row", out_dtype="fp32", fast_accum=True),
    Problem(64, 2112, 7168, dtype="e4m3", layout="nt", scaling="block", epilogue="bias"),
    # Sums that are stored as they are take shared memory beside the pipeline's.
    Problem(512, 4096, 8192, dtype="e4m3", layout="nt", scaling="block", out_dtype="fp32"),
]


def main(arch: str) -> None:
    device = KNOWN[arch]
    cross_target.activate(arch)
    draw, found = random.Random(arch), []
    for problem in PROBLEMS:
        for (op, _), spec in sorted(registry.specs().items()):
            if op != "matmul" or spec.name == "padded" or spec.supports(problem, device) is not None:
                continue
            # One of the two, in turn: which, differs between kernels and problems.
            config = spec.default_config(problem, device)
            if draw.random() < 0.5 and (configs := spec.space(problem, device).configs()):
                config = draw.choice(configs)
            compiled = spec.compile(problem, config)
            known = spec.shared_bytes(config, problem, device) if spec.shared_bytes else device.shared_bytes
            case = {"case": f"{problem} {config}", "kernel": spec.name, "scaling": problem.scaling}
            found.append({**case, "shared_bytes": compiled.metadata.shared, "predicted_bytes": known})
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
