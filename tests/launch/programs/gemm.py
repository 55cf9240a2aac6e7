"""Launch GEMMs named on the command line: a JSON list of [problem's fields, kernel, config's parameters].

With `compile` as the second argument they are compiled as the tuner does it, for sm_90 and without any driver.
"""

from __future__ import annotations

import json
import sys

import stub_driver
from triton import knobs
from triton.runtime.errors import OutOfResources

from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.sweep import cross_target

asked = [
    (Problem.from_fields(fields), Config(kernel, **parameters))
    for fields, kernel, parameters in json.loads(sys.argv[1])
]
if sys.argv[2:] == ["compile"]:
    cross_target.activate("sm_90")
    compiles = stub_driver.Compiles()
    knobs.compilation.listener = compiles
    for problem, config in asked:
        registry.find(problem.op, config.kernel).compile(problem, config)
    stub_driver.tell(compiled=compiles.compiled, from_cache=compiles.from_cache)
    sys.exit()

compiles = stub_driver.activate()
launches = []
for problem, config in asked:
    spec = registry.find(problem.op, config.kernel)
    operands = spec.make_inputs(problem, "cpu", 0)
    refused = ""
    try:
        spec.launch(operands, config)
    except OutOfResources as e:
        refused = str(e)
    tensors = (operands.a, operands.b, operands.out, operands.bias)
    launches.append(
        {
            "pointers": [tensor.data_ptr() for tensor in tensors if tensor is not None],
            "compile_class": spec.compile_class(problem, config),
            "compiled": compiles.compiled,
            "refused": refused,
        }
    )
stub_driver.tell(launches=launches, compiled=compiles.compiled, from_cache=compiles.from_cache)
