"""Launches configs of both packages' kernels under the interpreter; prints errors as shares of what is accepted."""

import json
import sys

from tuner.hardware.device import INTERPRETER
from tuner.moe.kernel import register
from tuner.moe.layer import Layer

LAYERS = (
    Layer(8, 32, 48, 2),
    Layer(8, 32, 48, 2, "fp16"),
    Layer(8, 32, 48, 2, "fp8_w8a8"),
    Layer(8, 64, 64, 2, "fp8_w8a8", (32, 32)),
    Layer(8, 32, 48, 2, "int8_w8a16"),
    Layer(8, 64, 128, 2, "int8_w8a16", group_size=32),
    Layer(8, 64, 128, 2, "int4_w4a16", group_size=32),
    Layer(8, 64, 128, 2, "int4_w4a16", group_size=64, zero_points=True),
)
SEVERAL = (LAYERS[0], LAYERS[-2])
name = sys.argv[1]
spec, found = register(name), []
for layer in LAYERS:
    # vLLM sorts no tokens where there are few: one token with two of eight experts.
    for m, routing in ((1, "uniform"), (9, "zipf")) if layer in SEVERAL else ((9, "zipf"),):
        for problem in layer.problems(name, m, routing):
            inputs = spec.make_inputs(problem, "cpu", m)
            expected = spec.reference(inputs)
            # The last config of the space has other tiles, which one dtype of each kernel tries.
            others = spec.space(problem, INTERPRETER).configs()[-1:] if layer in SEVERAL else []
            for config in {spec.default_config(problem, INTERPRETER), *others}:
                inputs.poison()
                spec.launch(inputs, config)
                error = max(inputs.error_ratios(expected).values())
                inputs.gemms[-1].c[-1, -1, -1] += 100.0
                found.append(
                    {
                        "case": f"{problem} {config}",
                        "error": error,
                        "spoilt": max(inputs.error_ratios(expected).values()),
                    }
                )
            assert spec.supports(problem, INTERPRETER) is None
json.dump(found, sys.stdout)
