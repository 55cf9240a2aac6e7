"""Compiles the default and some configs of every dtype for sm_90; prints what the binaries take."""

import json
import sys

from tuner.hardware.device import KNOWN
from tuner.moe.kernel import register
from tuner.moe.layer import Layer
from tuner.sweep import cross_target

DEVICE = KNOWN["sm_90"]
LAYERS = (
    Layer(64, 2048, 1536, 6),
    Layer(64, 2048, 1536, 6, "fp8_w8a8"),
    Layer(64, 2048, 1536, 6, "fp8_w8a8", (128, 128)),
    Layer(64, 2048, 1536, 6, "int8_w8a16"),
    Layer(64, 2048, 1536, 6, "int8_w8a16", group_size=128),
    Layer(64, 2048, 1536, 6, "int4_w4a16", group_size=128, zero_points=True),
)
cross_target.activate("sm_90")
name = sys.argv[1]
spec, found = register(name), []


def likely(problem, **only):
    space = spec.space(problem, DEVICE).narrowed(**only)
    return space.best(lambda config: spec.estimate_us(config, problem, DEVICE))


for layer in LAYERS:
    for problem in layer.problems(name, 512):
        # Of down, which SGLang has by itself, the default alone: it differs from gate-up in sizes.
        others = [] if problem["gemm"] == "down" else [(problem, likely(problem))]
        if others and layer.dtype == "fp8_w8a8":  # weights are multiplied by few tokens
            few = problem.with_m(4)
            others.append((few, likely(few, BLOCK_SIZE_M=(16,), BLOCK_SIZE_N=(64, 128))))
        for its, config in dict.fromkeys([(problem, spec.default_config(problem, DEVICE)), *others]):
            compiled = spec.compile(its, config)
            found.append(
                {
                    "case": f"{its} {config}",
                    "shared_bytes": compiled.metadata.shared,
                    "predicted_bytes": spec.shared_bytes(config, its, DEVICE),
                    "wgmma": "wgmma" in compiled.asm["ptx"],
                }
            )
json.dump(found, sys.stdout)
