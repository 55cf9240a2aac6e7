"""Compile a config as a child of the pool does, or find it without Triton's key; print whether that was done."""

import json
import sys

from triton.runtime import cache

from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.problem import Problem
from tuner.sweep import compile_child, cross_target

if sys.argv[1:]:  # a second process, which may not ask

    def ask() -> str:
        raise AssertionError("asked for Triton's key")

    cache.triton_key = ask
DEVICE = KNOWN["sm_90"]
cross_target.activate(DEVICE.arch)
problem = Problem(64, 64, 64, dtype="float16")
config = registry.find("matmul", "pointer").default_config(problem, DEVICE)
result = compile_child.compile_config("matmul", "pointer", problem, config)
sys.stdout.write(json.dumps(isinstance(result, compile_child.Compiled)))
